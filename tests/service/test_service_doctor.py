"""`flide-agent doctor` finds what a server would find."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from service_process import Start
from typer.testing import CliRunner

from flide_agent import cli, default_model
from flide_agent.store.directory import claim


def test_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    small = ["--memory", "64MiB", "--device", "cpu", "--set", "port=0", "--json"]
    done = CliRunner().invoke(cli.app, ["doctor", "--store", str(tmp_path / "s"), *small])
    assert done.exit_code == 0, done.output
    found = {each["subject"]: each for each in json.loads(done.stdout)}
    assert {"device", "open files", "store", "keys", "model", "labels", "tokenizer", "memory", "self-test", "speed"} <= set(
        found
    )
    assert found["model"]["grade"] == "good", "trained"
    assert found["self-test"]["grade"] == "good"
    assert not (tmp_path / "s").exists(), "it changes nothing"
    wrong = CliRunner().invoke(
        cli.app, ["doctor", "--model", str(tmp_path / "none"), "--set", "host=0.0.0.0", "--set", "front_ends=64", *small]
    )
    assert wrong.exit_code == 1
    faults = {each["subject"] for each in json.loads(wrong.stdout) if each["grade"] == "fault"}
    assert faults == {"model", "keys"}
    cores = next(each for each in json.loads(wrong.stdout) if each["subject"] == "cores")
    assert (cores["grade"] == "warning") == ("64 front ends" in cores["found"]) == ((os.cpu_count() or 1) <= 64)
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as stack:
        owner, _ = claim(tmp_path / "held", False)
        stack.callback(owner.release)
        port = ["--set", f"port={taken.getsockname()[1]}"]
        held = CliRunner().invoke(cli.app, ["doctor", "--store", str(tmp_path / "held"), *small, *port])
        assert {each["subject"] for each in json.loads(held.stdout) if each["grade"] == "fault"} == {"store", "port"}
        assert held.exit_code == 1, "a server would not start"
    text = CliRunner().invoke(cli.app, ["doctor", "--store", str(tmp_path / "s"), *small[:-1]])
    assert re.search(r"^good +model .*flide-default", text.output, re.MULTILINE)
    text = CliRunner().invoke(cli.app, ["doctor", "--store", str(tmp_path / "s"), "--set", "front_ends=64", *small[:-1]])
    change = re.search(r"^warning +cores .*\n +-> front_ends=", text.output, re.MULTILINE)
    assert (change is not None) == ((os.cpu_count() or 1) <= 64)


def test_weights_that_are_not_finite(start: Start, tmp_path: Path) -> None:
    """Doctor says it; a server with them is not ready, refuses to answer, and its log says why."""
    model = tmp_path / "broken"
    shutil.copytree(default_model.DIRECTORY, model, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    weights = load_file(model / "model.safetensors")
    norm = "model.norm.weight"
    weights[norm] = torch.full_like(weights[norm], float("nan"))
    save_file(weights, model / "model.safetensors")
    small = ["--memory", "64MiB", "--device", "cpu", "--set", "port=0", "--json"]
    done = CliRunner().invoke(cli.app, ["doctor", "--model", str(model), "--store", str(tmp_path / "s"), *small])
    assert {each["subject"] for each in json.loads(done.stdout) if each["grade"] == "fault"} >= {"answers"}
    assert done.exit_code == 1
    server = start(tmp_path / "s", "--model", str(model))
    http = server.http()
    assert http.get("/ready").status_code == 503
    asked = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}
    reply = http.post("/v1/systemone", json=asked)
    assert reply.status_code == 500
    deadline = time.monotonic() + 10
    while not any("not finite" in line for line in server.errors) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any("not finite" in line for line in server.errors)
