"""One job per output folder: a lock, and the plan that a job there goes on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput
from temperance.files import write_bytes
from temperance.training.plan import Prepared
from temperance.version import __version__

__all__ = ["check_plan", "keep_plan", "only_one", "tidy"]

_MAY_DIFFER = ("workers", "device")  # how the work is done, not what is done


@contextmanager
def only_one(folder: Path, *, verb: str) -> Iterator[None]:
    """Hold a lock on the folder; the system frees it even if the process is killed.

    Args:
        folder: the output folder, which is there; an empty one is taken away if the block raises.
        verb: of the command line, for the message.

    Raises:
        InvalidInput: if another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InvalidInput(
            f"output folder {folder}",
            expected="a folder that nobody is writing",
            found=f"another temperance {verb} at work there",
            fix="Wait for it, or choose another folder.",
        ) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # an empty folder is of no use; one with a state in it stays
            folder.rmdir()
        raise
    finally:
        os.close(handle)


def check_plan(folder: Path, plan: Mapping[str, Any], *, resume: bool, verb: str) -> None:
    """Refuse a folder with a job in it, unless it is this job and it is to go on.

    Args:
        folder: the output folder.
        plan: the plan as plain values, with its ``source``.
        resume: whether to go on.
        verb: of the command line, for the message.

    Raises:
        InvalidInput: for a folder among the data, with other things, with another job, or with this
            one without ``resume``.
    """
    file = folder / "plan.json"
    _refuse_inside(folder, str(plan["source"]))
    if not file.exists():
        others = sorted(p.name for p in folder.iterdir())
        if others:
            raise InvalidInput(
                f"output folder {folder}",
                expected=f"a new or empty folder, or one of temperance {verb}",
                found=", ".join(others[:5]) + (", ..." if len(others) > 5 else ""),
                fix="Choose another folder; nothing in this one was touched.",
            )
        return
    if not resume:
        raise InvalidInput(
            f"output folder {folder}",
            expected="an empty folder",
            found="a training",
            fix="Pass --resume to go on with it, or choose another folder.",
        )
    old = _read_plan(file)["plan"]
    for key in plan:
        if key not in _MAY_DIFFER and old.get(key) != plan[key]:
            raise InvalidInput(
                f"output folder {folder}",
                expected=f"the same job: {key} = {old.get(key)!r}",
                found=f"{key} = {plan[key]!r}",
                fix="Resume with the options of the first call, or choose another folder.",
            )


def keep_plan(folder: Path, plan: Mapping[str, Any], prepared: Prepared) -> None:
    """Write the plan with fingerprints of data and weights, or check those that are there.

    Args:
        folder: the output folder.
        plan: the plan as plain values.
        prepared: what ``prepare`` gave for it.

    Raises:
        InvalidInput: if data or weights are others than those that the job was started with.
    """
    file = folder / "plan.json"
    prints = {"data": prepared.data.fingerprint}
    if prepared.plan.weights is not None:
        content = Path(prepared.plan.weights).read_bytes()
        prints["weights"] = hashlib.sha256(content).hexdigest()
    facts = {"plan": dict(plan), "fingerprints": prints}
    if file.exists():
        old = _read_plan(file)["fingerprints"]
        for what, source in (("data", prepared.plan.source), ("weights", prepared.plan.weights)):
            if old.get(what) != prints.get(what):
                raise InvalidInput(
                    f"{what} {source}",
                    expected=f"the {what} that the training was started with",
                    found="other content",
                    fix="Put it back, or start into another folder.",
                )
        return
    text = json.dumps({**facts, "version": __version__}, indent=2, ensure_ascii=False)
    write_bytes(file, text.encode())


def tidy(folder: Path) -> None:
    """Drop states and the weights of single runs; records and logits stay."""
    for file in (folder / "state").glob("*.safetensors"):
        file.unlink()
    with suppress(OSError):
        (folder / "state").rmdir()
    for file in (folder / "runs").glob("*.weights.safetensors"):
        file.unlink()


def _refuse_inside(folder: Path, source: str) -> None:
    """An output folder among the data would be read as a class the next time."""
    data = Path(source)
    if data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
        raise InvalidInput(
            f"output folder {folder}",
            expected=f"a folder outside the data in {source}",
            found="one inside",
            fix="Choose another with --out.",
        )


def _read_plan(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {"plan": dict(found["plan"]), "fingerprints": dict(found["fingerprints"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            str(file),
            expected="the plan of a training",
            found=f"something else ({error})",
            fix="Choose another folder.",
        ) from error
