"""Weights and caps of tenants, as commands change them: into the store, audited, in place of the settings file's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.policy.standing import in_force
from gputui.domain.settings import PolicySettings, TenantSettings
from gputui.domain.snapshot import Controls
from gputui.ports import Clock, JobStore, Transaction


class Tenants:
    """What one actor may ask for; `policy` is the settings file's. Every method blocks on disk."""

    def __init__(self, store: JobStore, clock: Clock, actor: Actor, policy: PolicySettings) -> None:
        self._store = store
        self._clock = clock
        self._actor = actor
        self._policy = policy

    def set(self, name: str, changes: Mapping[str, Any], *, clear: bool = False) -> None:
        """Change a tenant's weight and caps; with `clear`, beginning from none at all."""
        with self._store.transaction() as transaction:
            controls = transaction.controls()
            known = {tenant.name: tenant for tenant in in_force(self._policy, controls).tenants}
            before = known.get(name)
            after = replace(TenantSettings(name) if clear or before is None else before, **changes)
            self._put(transaction, controls, name, (after,))
            self._audit(transaction, name, before, after)

    def remove(self, name: str) -> None:
        """Forget what a command set: what the settings file says of it, if anything, holds again."""
        with self._store.transaction() as transaction:
            controls = transaction.controls()
            before = next((tenant for tenant in controls.tenants if tenant.name == name), None)
            of_file = next((tenant for tenant in self._policy.tenants if tenant.name == name), None)
            if before is None and of_file is not None:
                raise GputuiError(f"tenant {name} is one of the settings file", hint="change it there, or tenant set")
            if before is None:
                raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
            self._put(transaction, controls, name, ())
            self._audit(transaction, name, before, of_file)

    def _put(self, transaction: Transaction, controls: Controls, name: str, row: tuple[TenantSettings, ...]) -> None:
        others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
        transaction.set_controls(replace(controls, tenants=(*others, *row)))

    def _audit(
        self, transaction: Transaction, name: str, before: TenantSettings | None, after: TenantSettings | None
    ) -> None:
        actor, now = self._actor, self._clock.now()
        words = _in_words(before), _in_words(after)
        transaction.audit(AuditEntry(now, actor.uid, actor.user, "tenant", f"tenant {name}", *words))


def _in_words(tenant: TenantSettings | None) -> str:
    if tenant is None:
        return ""
    caps = {"GPUs": tenant.gpus, "running": tenant.running, "pending": tenant.pending}
    told = [f"at most {cap} {word}" for word, cap in caps.items() if cap is not None]
    return ", ".join((f"weight {tenant.weight:g}", *told))
