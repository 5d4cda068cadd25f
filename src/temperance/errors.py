"""The errors of the library: data in, one clear sentence out.

::

    TemperanceError
    ├── InvalidInput   (also ValueError)    something given cannot be used
    ├── NotFound       (also LookupError)   a name or a module that is not there, or not only once
    ├── MissingPackage (also ImportError)   an optional package is needed
    └── Interrupted                         the user stopped a long job; its state is on disk

    TemperanceWarning  (also UserWarning)   the work goes on, but something should be looked at

Every error says what was expected, what was found and what to do. The parts are attributes, so that
programs and tests look at data and never at the wording.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

__all__ = [
    "Interrupted",
    "InvalidInput",
    "MissingPackage",
    "NotFound",
    "TemperanceError",
    "TemperanceWarning",
    "need",
]


class TemperanceError(Exception):
    """Base class of every error that the library raises on purpose.

    Attributes:
        exit_code: what the command line returns for this kind of error.
    """

    exit_code = 1


class InvalidInput(TemperanceError, ValueError):
    """Something that was given cannot be used.

    Args:
        subject: what was looked at, for instance ``"labels"`` or a file name.
        expected: what it should have been.
        found: what it is.
        fix: what to do about it, as an instruction.

    Example:
        >>> from temperance.errors import InvalidInput
        >>> print(InvalidInput("labels", expected="two classes", found="1", fix="Add data."))
        labels: expected two classes, found 1. Add data.
    """

    exit_code = 3

    def __init__(self, subject: str, *, expected: str, found: str, fix: str) -> None:
        self.subject, self.expected, self.found, self.fix = subject, expected, found, fix
        super().__init__(f"{subject}: expected {expected}, found {found}. {fix}")


class NotFound(TemperanceError, LookupError):
    """A name or a module that is not there, or that is there more than once.

    Args:
        subject: what was looked for.
        found: what was seen instead.
        candidates: the names that can be chosen from, if any.
        fix: what to do about it, as an instruction.
    """

    exit_code = 4

    def __init__(
        self, subject: str, *, found: str, candidates: Sequence[str] = (), fix: str
    ) -> None:
        self.subject, self.found, self.fix = subject, found, fix
        self.candidates = tuple(candidates)
        choice = f" Candidates: {', '.join(self.candidates)}." if self.candidates else ""
        super().__init__(f"{subject}: {found}.{choice} {fix}")


class MissingPackage(TemperanceError, ImportError):
    """An optional package is needed for what was asked.

    Args:
        package: the package that failed to import.
        extra: the extra of Temperance that brings it.
    """

    exit_code = 5

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{package} is needed for this and is not installed. "
            f"Run: pip install 'temperance[{extra}]'"
        )


class Interrupted(TemperanceError):
    """The user stopped a long job.

    Args:
        what: the job.
        resume: how to go on, as an instruction.
    """

    exit_code = 130

    def __init__(self, what: str, *, resume: str) -> None:
        self.what, self.resume = what, resume
        super().__init__(f"{what} was interrupted. {resume}")


class TemperanceWarning(UserWarning):
    """The work goes on, but something in the input or the result should be looked at."""


def need(package: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Args:
        package: the module to import.
        extra: the extra of Temperance that installs it.

    Returns:
        The imported module.

    Raises:
        MissingPackage: if the package cannot be imported because it is not installed.

    Example:
        >>> from temperance.errors import need
        >>> need("json", "parquet").__name__
        'json'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package.split(".")[0]:
            raise
        raise MissingPackage(package, extra) from error
