"""The app `system`: maintenance of the platform's own data, as typed jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.apps.system.ledger import NAME, SYSTEM_JOBS, system_jobs
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.witness import Witness
from holdfast.runtime.app import App, Table

# A token or an entry of the audit names an organisation or a user, whichever its bearer is confined to.
OF_ANYBODY = {"org_id": "tenant", "tenant_id": "tenant", "user_id": "tenant"}

# The platform's own tables.
TABLES = (
    Table(name="workers"),
    Table(name="holdfast_version", key=("version_num",)),
    Table(name="holdfast_pause", key=("ledger", "queue")),
    Table(name="holdfast_pulse", key=("minute", "ledger", "kind", "fact", "label")),
    Table(name="holdfast_token", subjects=OF_ANYBODY),
    Table(name="holdfast_session", key=("hash",), subjects=OF_ANYBODY),
    Table(name="holdfast_audit", subjects=OF_ANYBODY),
)


@dataclass(frozen=True, kw_only=True)
class SystemApp(App):
    """The app: its ledger's journal is a file."""

    def fitted(self, settings: Settings) -> tuple[Ledger, ...]:
        """Its ledger, in the schema that goes with the one of the other tables."""
        return (system_jobs(f"{settings.schema}_system"),) if settings.schema else self.ledgers

    def witnesses(self, settings: Settings) -> Mapping[str, Witness]:
        """The log hears of every job."""
        from holdfast.apps.system.bench import log_of
        from holdfast.apps.system.joblog import witness

        return {NAME: witness(log_of(settings))}


APP = SystemApp(
    name="system",
    ledgers=(SYSTEM_JOBS,),
    tables=TABLES,
    work="holdfast.apps.system.work",
    web="holdfast.apps.system.web",
)
