"""The app `system`: maintenance of the platform's own data, as typed jobs."""
