"""The app `tasks`: the lean, high-throughput queue."""

from holdfast.apps.tasks.ledger import TASKS
from holdfast.runtime.app import App

APP = App(name="tasks", ledgers=(TASKS,))
