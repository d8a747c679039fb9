"""How commands end: what nobody foresaw, machines at their limits, readers that leave, streams that cannot show all."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demosift.cli import verbs
from demosift.cli.main import main
from demosift.errors import printable
from demosift.types import InputError

pytest_plugins = ["pytester"]
OLD = Path(__file__).parent / "old" / "0.1.0"
HOSTILE = "a\x1b[2J\u202eb\u2028c\udce9d\r\ne"


def ending_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    def run(_: Any) -> Any:
        raise error

    monkeypatch.setattr(verbs, "run_report", run)
    return main(["report", "anywhere", *flags])


@pytest.mark.defect
def test_a_defect_is_one_line_and_a_file(details: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    assert ending_with(KeyError(HOSTILE), monkeypatch) == 70
    (file,) = details.iterdir()
    said = capsys.readouterr().err
    assert said.startswith("demosift: internal error: KeyError: ")
    assert said.endswith(f"; the details are in {file}, please report it\n")
    assert said.count("\n") == 1
    assert "Traceback" in file.read_text()
    assert "raise error" in file.read_text()


@pytest.mark.defect
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    assert ending_with(ZeroDivisionError("no"), monkeypatch, "--debug") == 70
    assert "raise error" in capsys.readouterr().err
    assert ending_with(InputError("no"), monkeypatch, "--debug") == 2
    assert "raise error" in capsys.readouterr().err


def test_a_defect_is_one_line_if_details_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("DEMOSIFT_DETAILS", str(tmp_path / "nowhere"))
    assert ending_with(ZeroDivisionError("no"), monkeypatch) == 70
    line = "demosift: internal error: ZeroDivisionError: no; --debug shows the details, please report it\n"
    assert capsys.readouterr().err == line


def test_a_panic_is_a_defect_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    class PanicException(BaseException):  # as libraries in Rust raise it
        pass

    monkeypatch.setenv("DEMOSIFT_DETAILS", str(tmp_path / "nowhere"))
    assert ending_with(PanicException("no"), monkeypatch) == 70
    assert capsys.readouterr().err.count("\n") == 1


def test_a_test_in_which_a_defect_shows_fails(pytester: pytest.Pytester):
    """In this process and in another, whatever the test itself makes of it."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(
        """
        import subprocess, sys
        from demosift.cli import ending

        CODE = "from demosift.cli import ending; ending.report_defect(ValueError())"

        def test_here():
            assert ending.report_defect(ValueError()) == 70

        def test_there():
            subprocess.run([sys.executable, "-c", CODE], check=True)

        def test_neither():
            pass
        """
    )
    pytester.makeini("[pytest]\nmarkers = long: long\n    defect: defect\n")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=3, errors=2)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 7 TiB"), "not enough memory: Unable to allocate 7 TiB"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "not enough memory: RESOURCE_EXHAUSTED: Out of memory"),
        (RecursionError("maximum recursion depth exceeded"), "something in the input is nested too deeply"),
        (OSError(36, "File name too long", "aaa"), "aaa: File name too long"),
        (PermissionError(13, "Permission denied", b"a\xe9"), r"a\udce9: Permission denied"),
        (BrokenPipeError(32, "Broken pipe"), "output: Broken pipe"),
        (InputError(HOSTILE), r"a\x1b[2J\u202eb c\udce9d e"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_is_foreseen_is_one_line(error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    assert ending_with(error, monkeypatch) == 2
    assert capsys.readouterr().err == f"demosift: {line}\n"


def test_unicode_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    with pytest.raises(UnicodeEncodeError) as raised:
        "\udce9".encode()
    assert ending_with(raised.value, monkeypatch) == 2
    assert capsys.readouterr().err.startswith("demosift: a name or text is not Unicode: ")


@pytest.mark.filterwarnings("always")
def test_results_and_warnings_show_no_control_characters(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def run(_: Any) -> verbs.Answer:
        warnings.warn(HOSTILE, stacklevel=1)
        return {"name": HOSTILE, "value": np.float32("nan")}, f"{HOSTILE}\nsecond line"

    monkeypatch.setattr(verbs, "run_report", run)
    assert main(["report", "anywhere"]) == 0
    said = capsys.readouterr()
    assert said.out == "a\\x1b[2J\\u202eb\\u2028c\\udce9d\\r\ne\nsecond line\n"
    assert said.err == "demosift: warning: a\\x1b[2J\\u202eb c\\udce9d e\n"
    assert main(["report", "anywhere", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": HOSTILE, "value": None}


def test_arguments_are_quoted_without_control_characters(capsys: Any):
    assert main(["report", "anywhere", HOSTILE]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(printable(line) == line for line in said.splitlines())


# In processes of their own, with streams that are not as one wishes


STUB = """
import sys
from demosift.cli import main, verbs
from demosift.types import InputError
NAME = "e\\u0301 \\udce9"
def run_report(options):
    if options.folder == "nowhere":
        raise InputError(NAME)
    return {"name": NAME}, NAME
verbs.run_report = run_report
sys.exit(main.main())
"""


def demosift(*arguments: str, shell: str = '"$@"', **environment: str) -> tuple[int, str, str]:
    """The command, in a line of shell that calls it "$@": its exit code and what it said. `report` reads no files."""
    line = ["bash", "-c", shell, "bash", sys.executable, "-c", STUB, *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    done = subprocess.run(line, capture_output=True, env=environment, check=False, timeout=100)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["report", "runs"], ["report", "nowhere"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(arguments: list[str], buffered: str):
    """Whoever reads stderr still learns what is wrong."""
    for pipe in ("|", "|&"):
        line = f'exec 3>&1; (sleep 0.1; exec "$@") {pipe} true; echo ${{PIPESTATUS[0]}} >&3'
        _, code, said = demosift(*arguments, shell=line, PYTHONUNBUFFERED=buffered)
        wrong = "nowhere" in arguments and pipe == "|"
        assert (int(code), said.count("\n")) == ((2, 1) if wrong else (141, 0))


def test_help_that_nobody_reads_is_no_error():
    assert demosift("report", "--help", shell='(sleep 0.1; exec "$@") | true; exit ${PIPESTATUS[0]}') == (141, "", "")


def test_output_on_a_full_disk_is_one_line():
    for unbuffered in ("", "1"):
        found = demosift("report", "runs", shell='"$@" > /dev/full', PYTHONUNBUFFERED=unbuffered)
        assert found == (2, "", "demosift: output: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str):
    code, out, said = demosift("report", "nowhere", shell=f'"$@" {closed}')
    assert (code, out, said.count("\n")) == (2, "", 0 if "2>&-" in closed else 1)


def test_a_closed_stream_is_open_to_processes_that_libraries_start():
    """GLFW, which MuJoCo's environments import, is looked for by such a process."""
    code = "import subprocess, sys\nfrom demosift.cli.ending import streams\nwith streams():\n"
    code += "    child = 'import sys; sys.exit(sys.stderr is None)'\n"
    code += "    sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)"
    assert subprocess.run(["bash", "-c", '"$@" 2>&-', "-", sys.executable, "-c", code], check=False).returncode == 0


def test_a_full_device_for_errors_changes_no_exit_code():
    assert demosift("report", "nowhere", shell='"$@" 2> /dev/full')[0] == 2


def test_an_ascii_terminal_shows_escapes():
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert demosift("report", "runs", **plain) == (0, "e\\u0301 \\udce9\n", "")
    assert demosift("report", "nowhere", **plain) == (2, "", "demosift: e\\u0301 \\udce9\n")
    assert demosift("report", "runs", PYTHONIOENCODING="utf-8") == (0, "e\u0301 \\udce9\n", "")


def test_names_that_are_not_utf8(tmp_path: Path, capsys: Any):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9\xff-\xc3\xa9")
    shutil.copytree(OLD / "runs", folder)
    assert main(["report", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": f"{folder}/report.html"}
    assert main(["report", folder]) == 0
    assert main(["report", f"{folder}/nothing"]) == 2
