"""The app `jobs`: the audited, multi-tenant ledger."""

from holdfast.apps.jobs.ledger import JOB
from holdfast.runtime.app import App

APP = App(name="jobs", ledgers=(JOB,))
