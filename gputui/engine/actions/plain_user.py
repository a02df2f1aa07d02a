"""Jobs of a plain user as the site admits them: checked when submitted, and again when they start.

The second check decides: settings, accounts and links may have changed, and values of a sweep are known only then.
"""

from __future__ import annotations

import grp
import os
import posixpath
import pwd
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import Launch
from gputui.domain.errors import AccessError, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.policy import admission
from gputui.domain.policy.admission import AdmissionRules
from gputui.domain.policy.permitted_options import MountSource, OptionRefusal, mount_sources
from gputui.domain.settings import Settings
from gputui.engine.actions.file_rights import FileAccount, file_account
from gputui.engine.actions.mount_sources import AllowedMounts, open_mounts, open_source


class NotAdmitted(Exception):  # noqa: N818 - a refusal of the rules, not a failure
    """A refusal on its way to the error that fits the moment."""

    def __init__(self, refusal: OptionRefusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class PlainUser(Struct, frozen=True):
    """A plain user of one state directory."""

    uid: int
    directory: Path
    settings: Settings
    guarded: tuple[str, ...]
    """Sockets of engines and of ours, without links."""

    def check(self, spec: JobSpec, account: FileAccount) -> None:
        """Raise AccessError for a job that this user may not submit; what is missing may be made before the start."""
        rules = self._rules(account)
        found = [*admission.refusals(spec, rules), *self._as_host_job(spec, account)]
        found += [] if rules.is_root_image(spec.image) else _as_another(spec.options, account)
        try:
            if not found and any(mount_sources(spec.options)):
                with ExitStack() as opened:
                    self._open(spec, _root(), rules, account, opened)
        except FileNotFoundError:
            found += self._misplaced(spec, rules, account)
        except NotAdmitted as refused:
            found.append(refused.refusal)
        except (OSError, ValueError, NotImplementedError) as error:
            found.append(_unopened(error))
        if found:
            raise _denied(found)

    def admitted(self, root: Callable[[], str], launch: Launch, until: ExitStack) -> Launch:
        """Return the launch in its box, with mounts held open until the stack is closed; raises RuntimeFault.

        `root` returns the root directory as the runtime sees it.
        """
        account, spec = file_account(self.uid), launch.spec
        rules = self._rules(account)
        for each in admission.refusals(spec, rules):
            raise not_allowed(each.sentence)
        box = admission.box(spec, rules)
        allowed = AllowedMounts(spec)
        if any(mount_sources(spec.options)):
            try:
                allowed = self._open(spec, root(), rules, account, until)
            except NotAdmitted as refused:
                raise not_allowed(str(refused)) from refused
            except (OSError, ValueError, NotImplementedError) as error:
                raise not_allowed(_unopened(error).sentence) from error
        return replace(launch, spec=allowed.spec, held=allowed.held, box=box, run_as=self.uid)

    def _open(
        self, spec: JobSpec, root: str, rules: AdmissionRules, account: FileAccount, until: ExitStack
    ) -> AllowedMounts:
        if rules.is_root_image(spec.image):
            raise NotAdmitted(_FROM_ROOT)
        refusal = self._mount_check(root, rules)

        def approve(source: MountSource, path: str) -> None:
            if found := refusal(source, path):
                raise NotAdmitted(found)

        return open_mounts(spec, root, approve, until, account)

    def _misplaced(self, spec: JobSpec, rules: AdmissionRules, account: FileAccount) -> Iterator[OptionRefusal]:
        """Yield why sources may not be mounted even once they exist, as far as the way to them exists."""
        root = _root()
        refusal = self._mount_check(root, rules)
        for source in mount_sources(spec.options):
            path = _expected(root, source.path, account)
            if path and (refused := refusal(source, path)):
                yield refused

    def _mount_check(self, root: str, rules: AdmissionRules) -> Callable[[MountSource, str], OptionRefusal | None]:
        """Return what tells why a source, of that path without links, may not be mounted."""
        roots, own = list(_roots(rules, root)), os.path.realpath(self.directory)
        return lambda source, path: admission.mount_refusal(source, path, rules, roots, self.guarded, own)

    def _rules(self, account: FileAccount) -> AdmissionRules:
        return AdmissionRules(self.uid, account.name, self.settings.admission, self.settings.policy.allow)

    def _as_host_job(self, spec: JobSpec, account: FileAccount) -> Iterator[OptionRefusal]:
        if spec.is_host and os.geteuid() not in {0, self.uid}:
            what = f"only a scheduler of root can run host jobs as {account.name}"
            yield OptionRefusal("--host", what, "run it in a container, or let root schedule")


def _as_another(options: ContainerOptions, account: FileAccount) -> Iterator[OptionRefusal]:
    """Yield why the user may not run as that user, or with that group."""
    name, _, group = (options.user or "").partition(":")
    if name and _uid(name) != account.uid:
        hint = "leave it out, or an operator lists the image in admission.root_images"
        yield OptionRefusal("--user", f"{name!a} is another user than {account.name}, as whom the job runs", hint)
    for option, wanted in (("--user", group), *(("--group-add", each) for each in options.group_add)):
        if wanted and _gid(wanted) not in {account.gid, *account.groups}:
            yield OptionRefusal(option, f"{account.name} is not in the group {wanted!a}", "leave it out")


def _uid(name: str) -> int | None:
    with suppress(KeyError, ValueError):
        return int(name) if name.isascii() and name.isdigit() else pwd.getpwnam(name).pw_uid
    return None


def _gid(name: str) -> int | None:
    with suppress(KeyError, ValueError):
        return int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid
    return None


_FROM_ROOT = OptionRefusal(
    "--volume", "an image that may run as root gets no directories of the host", "use a volume of your own"
)


def _roots(rules: AdmissionRules, root: str) -> Iterator[str]:
    """Yield the directories of `admission.mounts`, with the operator's links below that root directory resolved."""
    for fixed, rest in admission.mount_roots(rules):
        with suppress(OSError), ExitStack() as opened:  # what does not exist holds nothing
            seen = open_source(root, fixed, opened).path
            yield posixpath.join(seen, rest) if rest else seen


def _expected(root: str, path: str, account: FileAccount) -> str:
    """Return where the file will be when it is made, as far as its directories exist; empty if they are closed."""
    place = Path(path)
    for above in (place, *place.parents):
        try:
            with ExitStack() as opened:
                seen = open_source(root, str(above), opened, account).path
        except FileNotFoundError:
            continue
        except OSError:
            break
        return posixpath.normpath(posixpath.join(seen, place.relative_to(above)))
    return ""


def _root() -> str:
    """Return the machine's root directory: a service sees other files at its own, such as an empty /home."""
    of_machine = "/proc/1/root"
    return of_machine if os.access(f"{of_machine}/", os.X_OK) else "/"


def _unopened(error: Exception) -> OptionRefusal:
    if isinstance(error, OSError) and error.filename:
        what = f"{error.filename} cannot be mounted: {(error.strerror or str(error)).lower()}"
        return OptionRefusal("--volume", what, "mount what you may open yourself, and make it before the job starts")
    return OptionRefusal("--volume", str(error), "mount another directory")


def _denied(found: list[OptionRefusal]) -> AccessError:
    first = found[0]
    rule = f"admission-{first.option.lstrip('-')}"
    if len(found) == 1:
        return AccessError(first.what, rule=rule, where=first.option, hint=first.hint)
    return AccessError("; ".join(f"{each.option} {each.what}" for each in found), rule=rule, hint=first.hint)


def not_allowed(text: str) -> RuntimeFault:
    """Return the fault of a job that the site does not let start."""
    return RuntimeFault(Cause(CauseCode.NOT_ALLOWED, text))
