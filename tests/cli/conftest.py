"""Run the program in this process and see what a shell would see."""

import json
from dataclasses import dataclass

import pytest

from temperance.cli import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def run(capsys):
    """``run("suggest", "--features", "512")`` gives exit code, output and error stream."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call
