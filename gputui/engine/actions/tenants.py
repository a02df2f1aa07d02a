"""Actions on tenants: weights and caps, written into the store and audited; they override the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.settings import PolicySettings, TenantSettings
from gputui.domain.snapshot import Controls
from gputui.engine.actions.permissions import UserPermissions
from gputui.ports import Clock, JobStore, Transaction


class Tenants:
    """Actions of one actor; `policy` is the settings file's. Every method blocks on disk."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        actor: Actor,
        policy: PolicySettings,
        permissions: UserPermissions | None = None,
    ) -> None:
        self._permissions = permissions
        self._store = store
        self._clock = clock
        self._actor = actor
        self._policy = policy

    def set(self, name: str, changes: Mapping[str, Any], *, clear: bool = False) -> None:
        """Change a tenant's weight and caps; with `clear`, the others return to their defaults."""
        with self._store.transaction() as transaction:
            controls = transaction.controls()
            known = {tenant.name: tenant for tenant in effective_policy(self._policy, controls).tenants}
            before = known.get(name)
            after = replace(TenantSettings(name) if clear or before is None else before, **changes)
            self._check_may(before, after)
            self._put(transaction, controls, name, (after,))
            self._audit(transaction, name, before, after)

    def remove(self, name: str) -> None:
        """Remove a tenant's values; those of the settings file, if any, apply again."""
        with self._store.transaction() as transaction:
            controls = transaction.controls()
            before = next((tenant for tenant in controls.tenants if tenant.name == name), None)
            of_file = next((tenant for tenant in self._policy.tenants if tenant.name == name), None)
            if before is None and of_file is not None:
                raise GputuiError(
                    f"tenant {name} is defined in the settings file", hint="change it there, or tenant set"
                )
            if before is None:
                raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
            self._check_may(before, of_file)
            self._put(transaction, controls, name, ())
            self._audit(transaction, name, before, of_file)

    def _check_may(self, before: TenantSettings | None, after: TenantSettings | None) -> None:
        """Raise GputuiError if a member of a shared queue would change a highest priority, or the users."""
        if _guarded(before) == _guarded(after) or self._permissions is None:
            return
        if not self._permissions.may_operate(self._actor.uid):
            hint = "ask root, the owner of the state directory, or a user named by policy.operators"
            raise GputuiError("only an operator may change the highest priority or the users of a tenant", hint=hint)

    def _put(self, transaction: Transaction, controls: Controls, name: str, row: tuple[TenantSettings, ...]) -> None:
        others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
        transaction.set_controls(replace(controls, tenants=(*others, *row)))

    def _audit(
        self, transaction: Transaction, name: str, before: TenantSettings | None, after: TenantSettings | None
    ) -> None:
        actor, now = self._actor, self._clock.now()
        words = _in_words(before), _in_words(after)
        transaction.audit(AuditEntry(now, actor.uid, actor.user, "tenant", f"tenant {name}", *words))


def _guarded(tenant: TenantSettings | None) -> tuple[int | None, tuple[str, ...]]:
    """Return the fields that only operators may change."""
    return (tenant.max_priority, tenant.users) if tenant else (None, ())


def _in_words(tenant: TenantSettings | None) -> str:
    if tenant is None:
        return ""
    caps = {"GPUs": tenant.gpus, "running": tenant.running, "pending": tenant.pending}
    told = [f"at most {cap} {word}" for word, cap in caps.items() if cap is not None]
    told += [f"at most priority {tenant.max_priority}"] if tenant.max_priority is not None else []
    told += [f"for {', '.join(tenant.users)} alone"] if tenant.users else []
    return ", ".join((f"weight {tenant.weight:g}", *told))
