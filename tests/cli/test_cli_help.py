"""Help and completion of every command."""

import shlex

import pytest
import typer

from tests.sample_run import write_sample_run
from workbench.cli.examples import EXAMPLES
from workbench.cli.main import COMMANDS, build_app, main


def test_every_command_has_an_example_and_no_other_has():
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_the_command_takes(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    command = typer.main.get_command(build_app()).commands[name]
    for example in EXAMPLES[name]:
        assert example in printed
        program, called, *arguments = shlex.split(example.partition(" > ")[0])
        assert (program, called) == ("moe-workbench", name)
        here = [str(tmp_path) if "://" in value and "s3" in value else value for value in arguments]
        command.make_context(name, here)  # raises for what the command does not take


@pytest.fixture
def complete(capfd, monkeypatch):
    def ask(line):
        words = line.split(" ")
        monkeypatch.setenv("_MOE_WORKBENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        main([])
        return capfd.readouterr().out.split()

    return ask


def test_the_shell_completes_commands_options_and_runs(complete, tmp_path):
    assert complete("moe-workbench comp") == ["compare"]
    assert "--against" in complete("moe-workbench compare --ag")
    run = write_sample_run(tmp_path)
    found = complete(f"moe-workbench show --results {tmp_path} ")
    assert found == ["latest", run.run_id]
    assert complete(f"moe-workbench report --results {tmp_path} 20") == [run.run_id]


def test_a_completion_script_is_shown(capsys, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda *_, **__: ("bash", "/bin/bash"))
    assert main(["--show-completion", "bash"]) in (0, 1)
    assert "_MOE_WORKBENCH_COMPLETE" in capsys.readouterr().out
