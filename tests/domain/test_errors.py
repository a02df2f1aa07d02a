"""Errors say what, where and what to do, and each has its exit code."""

from __future__ import annotations

import pickle

from gputui.domain.errors import (
    AccessError,
    Blame,
    CapabilityError,
    Cause,
    CauseCode,
    ClusterError,
    ClusterRefusedError,
    ClusterUnavailableError,
    GputuiError,
    InputError,
    InputErrors,
    LostAnswerError,
    NoOwnerError,
    NotFoundError,
    NotLeaderError,
    OtherEngineError,
    ParseLocallyError,
    RuntimeAccessError,
    RuntimeFault,
    RuntimeUnavailableError,
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreNewerError,
    StoreOwnedError,
    TransitionError,
)
from tests.cases import cases

EXIT_CODES = {
    GputuiError: 1,
    InputError: 2,
    InputErrors: 2,
    NotFoundError: 3,
    TransitionError: 1,
    StoreError: 1,
    StoreFullError: 1,
    StoreAccessError: 1,
    StoreFormatError: 1,
    StoreBusyError: 1,
    StoreOwnedError: 1,
    StoreDamagedError: 1,
    StoreNewerError: 1,
    AccessError: 1,
    NoOwnerError: 1,
    ParseLocallyError: 1,
    NotLeaderError: 1,
    RuntimeFault: 1,
    RuntimeUnavailableError: 1,
    OtherEngineError: 1,
    RuntimeAccessError: 1,
    ClusterError: 1,
    ClusterUnavailableError: 1,
    LostAnswerError: 1,
    ClusterRefusedError: 1,
    CapabilityError: 1,
}


def family(error: type[GputuiError]) -> set[type[GputuiError]]:
    return {error}.union(*(family(child) for child in error.__subclasses__() if child.__module__ == error.__module__))


def test_families_of_errors() -> None:
    # every error has its exit code
    assert {error: error.exit_code for error in family(GputuiError)} == EXIT_CODES
    # store errors are told apart from the others
    ones = {
        StoreFullError,
        StoreAccessError,
        StoreFormatError,
        StoreNewerError,
        StoreDamagedError,
        StoreBusyError,
        StoreOwnedError,
    }
    assert family(StoreError) == {StoreError, *ones}
    # a fault of the runtime carries its cause
    cause = Cause(CauseCode.IMAGE_NOT_FOUND, "no image nope:1")
    fault = RuntimeFault(cause, hint="check the name")
    assert fault.cause is cause
    assert str(fault) == "no image nope:1 (check the name)"
    # an unavailable runtime is never blamed on the job
    fault = RuntimeUnavailableError("the engine does not answer")
    assert fault.cause.code is CauseCode.RUNTIME_UNAVAILABLE
    assert fault.cause.blame is Blame.INFRASTRUCTURE


@cases(
    ("where", "hint", "sentence"),
    [
        (None, None, "it is wrong"),
        ("--memory", None, "--memory: it is wrong"),
        (None, "write 16g", "it is wrong (write 16g)"),
        ("--memory", "write 16g", "--memory: it is wrong (write 16g)"),
    ],
)
def test_an_error_has_a_problem_a_place_and_a_hint(where: str | None, hint: str | None, sentence: str) -> None:
    error = GputuiError("it is wrong", where=where, hint=hint)
    assert str(error) == sentence
    assert (error.what, error.where, error.hint) == ("it is wrong", where, hint)


@cases(
    "error",
    [
        InputError("wrong", where="--gpus", hint="write 2-4"),
        RuntimeFault(Cause(CauseCode.BAD_SPEC, "bad"), hint="mend it"),
        RuntimeUnavailableError("away", hint="start it"),
    ],
)
def test_an_error_survives_pickling(error: GputuiError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled just here
    assert type(copy) is type(error)
    assert (str(copy), copy.where, copy.hint) == (str(error), error.where, error.hint)
