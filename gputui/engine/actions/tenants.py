"""Actions on tenants: weights and caps, written into the store and audited; they override the settings file."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.domain.action import RemoveTenant, SetTenant
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.settings import TenantSettings
from gputui.domain.snapshot import Controls
from gputui.domain.submit_action import Done
from gputui.engine.actions.context import ActionContext
from gputui.ports import Transaction


def set_tenant(context: ActionContext, action: SetTenant) -> Done:
    """Change a tenant's weight and caps."""
    name = action.name
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        known = {tenant.name: tenant for tenant in effective_policy(context.policy, controls).tenants}
        before = known.get(name)
        after = replace(TenantSettings(name) if action.clear or before is None else before, **action.changes)
        _check_may(context, before, after)
        _put(transaction, controls, name, (after,))
        context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(after))
    return Done()


def remove_tenant(context: ActionContext, action: RemoveTenant) -> Done:
    """Remove a tenant's values."""
    name = action.name
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        before = next((tenant for tenant in controls.tenants if tenant.name == name), None)
        of_file = next((tenant for tenant in context.policy.tenants if tenant.name == name), None)
        if before is None and of_file is not None:
            raise GputuiError(f"tenant {name} is defined in the settings file", hint="change it there, or tenant set")
        if before is None:
            raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
        _check_may(context, before, of_file)
        _put(transaction, controls, name, ())
        context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(of_file))
    return Done()


def _check_may(context: ActionContext, before: TenantSettings | None, after: TenantSettings | None) -> None:
    """Raise GputuiError if a member of a shared queue would change a highest priority, or the users."""
    if _guarded(before) != _guarded(after) and not context.may_operate:
        hint = "ask root, the owner of the state directory, or a user named by policy.operators"
        raise GputuiError("only an operator may change the highest priority or the users of a tenant", hint=hint)


def _put(transaction: Transaction, controls: Controls, name: str, row: tuple[TenantSettings, ...]) -> None:
    others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
    transaction.set_controls(replace(controls, tenants=(*others, *row)))


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
