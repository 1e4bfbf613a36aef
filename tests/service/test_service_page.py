"""The live page in a real browser: sessions, three live steps with their answers, a key, and nothing from elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_browser import Browser
from service_process import Running, Start

from flide_agent.client import Client
from flide_agent.keys import new_key

QUESTIONS = {
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "<b>next</b>": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "<i>stop</i>": None}},
    "risk": {"type": "score", "criteria": ["low", "some", "high"]},
}
NAME = "run <img src=x onerror=alert(1)>"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


def step(client: Client, session: str, head: str, number: int) -> tuple[str, dict[str, str]]:
    """(head, question -> answer as the page shows it)."""
    text = f"make: *** [test] Error {number} " * 12
    reply = client.decide(session, append=[{"role": "tool", "content": text}], head=head, questions=QUESTIONS)
    assert reply.x_session is not None
    shown = {
        "failed": f"{reply.answers['failed'].noul:.3f}",
        "<b>next</b>": reply.answers["<b>next</b>"].choice,
        "risk": f"{reply.answers['risk'].score:.2f}",
    }
    return reply.x_session.head, shown


def answers(browser: Browser, number: int) -> dict[str, str]:
    found = browser.run(
        f"Object.fromEntries([...document.querySelectorAll('tr[data-step=\"{number}\"] [data-question]')]"
        ".map((e) => [e.dataset.question, e.innerText.slice(e.dataset.question.length).trim()]))"
    )
    return dict(found)


def picture(browser: Browser, name: str) -> None:
    """Kept where FLIDE_PICTURES says, for whoever wants to look."""
    if folder := os.environ.get("FLIDE_PICTURES"):
        browser.picture(Path(folder) / name)


def test_three_live_steps(server: Running, browser: Browser) -> None:
    client = server.client()
    head = client.open_session(NAME)["head"]
    for i in range(3):
        client.open_session(f"other-{i}")
    browser.open(f"{server.url}/ui")
    browser.until("document.querySelectorAll('[data-session]').length >= 4")
    picture(browser, "sessions.png")
    browser.run(f"[...document.querySelectorAll('[data-session]')].find((b) => b.dataset.session === {NAME!r}).click()")
    browser.until("document.getElementById('state').textContent === 'live'")
    assert browser.run("document.getElementById('title').textContent") == NAME
    for number in (1, 2, 3):
        head, shown = step(client, NAME, head, number)
        browser.until(f"document.querySelector('tr[data-step=\"{number}\"] [data-question=risk]')")
        assert answers(browser, number) == shown
        browser.until(f"document.querySelector('tr[data-step=\"{number}\"]').innerText.includes('durable')")
    assert browser.run("document.querySelectorAll('#steps tr').length") == 3
    assert browser.run("document.querySelectorAll('#charts svg').length") == 5, "reuse, latency and three questions"
    assert browser.run("document.querySelectorAll('#steps img, #steps i:not(.bar i), #title img').length") == 0, (
        "text stays text"
    )
    picture(browser, "steps.png")
    browser.open(f"{server.url}/ui#{'other-1'}")
    browser.until("document.getElementById('title').textContent === 'other-1'")
    assert browser.run("performance.getEntriesByType('resource').every((e) => e.name.startsWith(location.origin))")
    assert browser.said == []


def test_with_a_key(start: Start, tmp_path: Path, browser: Browser) -> None:
    key, line = new_key("somebody")
    (tmp_path / "keys").write_text(line)
    server = start(tmp_path / "s", "--keys-file", str(tmp_path / "keys"))
    client = Client(server.url, api_key=key)
    head = client.open_session("mine")["head"]
    browser.open(f"{server.url}/ui")
    browser.until("!document.getElementById('key-form').hidden")
    assert browser.run("document.querySelectorAll('[data-session]').length") == 0
    picture(browser, "key.png")
    browser.run(f"document.getElementById('key').value = '{key}'; document.querySelector('#key-form button').click()")
    browser.until("document.querySelector('[data-session=mine]')")
    browser.run("document.querySelector('[data-session=mine]').click()")
    browser.until("document.getElementById('state').textContent === 'live'")
    _, shown = step(client, "mine", head, 1)
    browser.until("document.querySelector('tr[data-step=\"1\"] [data-question=risk]')")
    assert answers(browser, 1) == shown
    assert key not in browser.run("JSON.stringify([localStorage, sessionStorage, location.href])")


def test_the_page_s_files(server: Running) -> None:
    http = server.http()
    for path, kind in (("/ui", "text/html"), ("/ui/app.js", "text/javascript"), ("/ui/style.css", "text/css")):
        reply = http.get(path)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert not re.search(r"https?://(?!www\.w3\.org)", reply.text), "nothing from elsewhere"
