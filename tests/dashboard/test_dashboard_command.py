"""The command that serves the dashboard: what it refuses, and what it starts."""

import socket

import pytest

from workbench.cli import report
from workbench.cli.main import main


def test_port_in_use_is_refused(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dashboard", "--port", str(port)]) == 2
    assert f"--port {port}: cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "module"), [("dashboard", "streamlit"), ("report", "plotly")])
def test_missing_extra_is_named(monkeypatch, capsys, command, module):
    real = report.find_spec
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == module else real(name))
    assert main([command]) == 2
    assert f"{module} is not installed; get it with: pip install 'moe-workbench[dashboard]'" in capsys.readouterr().err


def test_it_listens_on_the_loopback_address_and_reports_to_nobody(monkeypatch, tmp_path, capsys):
    started = []
    monkeypatch.setattr(report, "_serve", lambda command, environment: started.append((command, environment)) or 0)
    assert main(["dashboard", "--results", str(tmp_path), "--port", "18599"]) == 0
    ((command, environment),) = started
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=18599" in command
    assert "--browser.gatherUsageStats=false" in command
    assert environment["MOE_WORKBENCH_RESULTS"] == str(tmp_path)
    assert "http://127.0.0.1:18599" in capsys.readouterr().out
