"""The page in a browser: Chromium on a server without keys of clients. Skipped where there is no browser."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from promptcache.decode import Service
from tests.engine.calling import TOOLS
from tests.server.conftest import CHATS, TRAVEL, XML, Served, wait_until

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one has no windows, and opens a page in less than half the time of the others."""
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
REASON = (
    "playwright is not installed"
    if find_spec("playwright") is None
    else "no chromium is installed (apt-get install chromium-headless-shell)"
)
PAGE = Path(__file__).parents[2] / "promptcache" / "server" / "page"
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs a browser."""
    has_browser = BROWSER is not None and find_spec("playwright") is not None
    return pytest.mark.skipif(not has_browser, reason=REASON)(test)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, open_server: Served) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the page. In the end nothing was written to the console or asked of another host."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(width: int = 1280, *, url: str = open_server.url, expected: str = "(?!)", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)

        def note(message: str) -> None:
            if not re.search(expected, message):
                problems.append(message)

        page.on("console", lambda message: note(message.text))
        page.on("pageerror", lambda error: note(str(error)))
        ours = (f"{url}/", f"blob:{url}/", "data:")
        page.on("request", lambda request: request.url.startswith(ours) or note(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            page.unroute_all(behavior="ignoreErrors")  # a request may be on its way to a handler of this test
        context.close()
    assert problems == []


def ready(page: Any) -> Any:
    """Wait until the first check is done."""
    page.wait_for_selector("#picture:not([hidden])")
    return page


def run(page: Any) -> None:
    """Run the prompt, and wait for its results."""
    page.click("#run")
    page.wait_for_selector("#results:not([hidden])")


def write(page: Any, editor: str, text: str) -> None:
    """Replace the text of an editor as a person does."""
    page.click(f"#{editor} textarea")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def wait(page: Any, condition: Callable[[], bool]) -> None:
    """Wait for a condition while the browser works."""
    for _ in range(400):
        if condition():
            return
        page.wait_for_timeout(25)
    raise AssertionError("this took too long")


def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript. Playwright's own function needs `eval`, which the policy of the page forbids."""
    wait(page, lambda: bool(page.evaluate(condition)))


def pictures(page: Any) -> list[str]:
    """Return a list that gets every picture from now on."""
    found: list[str] = []

    def record(route: Any) -> None:
        response = route.fetch()
        found.append(response.text())
        route.fulfill(response=response)

    page.route("**/v1/layout.html", record)
    return found


def prompts_of(page: Any) -> list[dict[str, Any]]:
    """Return a list that gets the body of every prompt from now on."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda each: each.url.endswith("/v1/prompts") and bodies.append(each.post_data_json))
    return bodies


def text_of(page: Any, editor: str) -> str:
    """Return the text of an editor, which is that of its paper."""
    text: str = page.input_value(f"#{editor} textarea")
    painted = page.evaluate(
        f"[...document.querySelectorAll('#{editor} .line')].map((each) => each.textContent).join('\\n')"
    )
    assert painted == text
    return text


def test_the_page_is_ours() -> None:
    """The page has no code of others: its files are small, and import each other only."""
    scripts = {each.name: each.read_text(encoding="utf-8") for each in PAGE.glob("*.js")}
    imported = {
        name for text in scripts.values() for name in re.findall(r'^(?:import|export) .*from "(.*)";$', text, re.M)
    }

    assert {each.suffix for each in PAGE.iterdir()} == {".js", ".css", ".html", ".svg"}
    assert imported == {f"./{name}" for name in scripts} - {"./page.js"}
    assert max(max(map(len, text.splitlines())) for text in scripts.values()) < 200


@in_browser
def test_the_worked_example_runs_at_once(visit: Callable[..., Any], open_server: Served) -> None:
    """The page opens with a valid prompt of a schema of the server; Run answers it and says what was reused."""
    open_server.state.engine.warm(pairs=True)
    page = ready(visit())

    assert page.locator(".marks li").count() == 0
    run(page)
    assert page.inner_text("#answer") == "The best club of Miami is the Blue Note."
    told = re.fullmatch(
        r"(\d+) of (\d+) prompt tokens were cached \(\d+ %\): (\d+) of modules, (?:(\d+) of an earlier request, )?"
        r"(\d+) new\. \d+ were generated\.",
        page.inner_text("#cached"),
    )
    assert told is not None, page.inner_text("#cached")
    cached, total, *origins = (int(number or 0) for number in told.groups())
    assert (cached, total) == (sum(origins[:2]), sum(origins))
    assert ["miami", "memory"] in [row.split("\t")[:2] for row in page.locator("#reused tr").all_inner_texts()]


@in_browser
def test_a_mistake_is_marked_with_its_fix(visit: Callable[..., Any]) -> None:
    """Text that is wrong is underlined while it is written; the list says what, where and how to fix it."""
    page = ready(visit())
    write(page, "schema", '<schema name="travel">\n  <module name="a" requires="b">x</module>\n</schema>')
    mark = page.locator("#schema-marks li")
    mark.wait_for()

    assert re.match(r"error line 2, column \d+: .*'b'.* PC\d+$", mark.inner_text())
    assert page.locator("#schema .mark.error").count() == 1
    write(page, "prompt", '<prompt schema="travel"><!-- 𝒳 --><maimi/></prompt>')
    fault = page.locator("#prompt-marks li")
    fault.wait_for()
    assert "Fix: did you mean <miami>?" in fault.inner_text()
    assert page.inner_text("#prompt .mark.error") == "maimi"  # columns count characters, not UTF-16 units
    page.click("#prompt-marks button")
    page.keyboard.insert_text("X")
    assert "<Xmaimi/>" in text_of(page, "prompt")


@in_browser
def test_an_edited_schema_is_used_for_marks_and_said_to_be_unsaved(visit: Callable[..., Any]) -> None:
    """Modules of an edited schema can be chosen, and its picture is drawn; the page says that Run needs it saved."""
    page = ready(visit())
    write(page, "schema", '<schema name="travel"><module name="rome" required="true">Rome is old.</module></schema>')
    page.get_by_label("rome").wait_for()
    write(page, "prompt", '<prompt schema="travel"></prompt>')
    page.locator("#prompt-marks li").first.wait_for()
    drawn = pictures(page)
    page.get_by_label("rome").check()
    wait(page, lambda: bool(drawn))

    assert "rome" in drawn[0]
    until(page, "document.querySelectorAll('#prompt-marks li').length === 0")
    assert text_of(page, "prompt") == '<prompt schema="travel"><rome/></prompt>'
    assert "To run it, save it in the place of the server's travel." in page.inner_text("#schema-note")


def accept(page: Any, name: str) -> None:
    """Click on a name that is offered."""
    page.locator(".completions:not([hidden]) li", has_text=name).first.click()


@in_browser
def test_names_are_completed(visit: Callable[..., Any]) -> None:
    """The prompt completes modules, members of unions and parameters; the schema its elements and attributes."""
    page = ready(visit())

    assert {"trip-plan", "miami", "paris", "tokyo", "user"} <= {*offered(page, "prompt", '<prompt schema="travel"><')}
    page.keyboard.press("Escape")
    assert "miami-by-night" in offered(page, "prompt", '<prompt schema="travel"><miami><')
    page.keyboard.press("Escape")
    assert offered(page, "prompt", '<prompt schema="travel"><trip-plan d') == ["duration"]
    accept(page, "duration")
    page.keyboard.insert_text("two weeks")
    assert '<trip-plan duration="two weeks"' in text_of(page, "prompt")
    assert {"name", "requires", "excludes"} <= {*offered(page, "schema", '<schema name="x"><module ')}


@in_browser
def test_completions_are_taken_with_keys(visit: Callable[..., Any]) -> None:
    """Arrows choose and Enter takes, one step back undoes it, Escape closes, and Tab leaves with nothing taken."""
    page = ready(visit(expected="404"))
    chosen = ".completions:not([hidden]) [aria-selected=true] b"
    write(page, "prompt", '<prompt schema="travel">\n  ')
    page.keyboard.type("<m")
    page.wait_for_selector(chosen)
    option = page.locator(chosen).locator("..")
    assert page.get_attribute("#prompt-text", "aria-activedescendant") == option.get_attribute("id")
    page.keyboard.press("Enter")
    assert text_of(page, "prompt") == '<prompt schema="travel">\n  <miami'
    page.keyboard.type("/>\n<")
    page.wait_for_selector(chosen)
    first = page.inner_text(chosen)
    page.keyboard.press("ArrowDown")
    second = page.inner_text(chosen)
    page.keyboard.press("ArrowUp")
    assert page.inner_text(chosen) == first != second
    page.keyboard.press("Escape")
    assert page.locator(chosen).count() == 0
    page.keyboard.type("/")
    page.wait_for_selector(chosen)
    page.keyboard.press("Enter")
    written = '<prompt schema="travel">\n  <miami/>\n  </prompt>'
    assert text_of(page, "prompt") == written  # a new line begins below the last one
    page.keyboard.press("Control+z")
    assert text_of(page, "prompt") == written.removesuffix("prompt>")
    page.wait_for_timeout(100)
    page.keyboard.press("Control+Space")
    page.wait_for_selector(chosen)
    page.keyboard.press("Tab")
    assert page.locator(chosen).count() == 0
    assert text_of(page, "prompt") == written.removesuffix("prompt>")
    assert page.evaluate("document.activeElement.id") != "prompt-text"


DOCUMENTS = (
    "", "\n", "a\n\nb", '<a b="c>d" e=\'f\'><!-- <g> -->&amp;&lt;</a>', "<a\n  b=\"1\"\n/>", "<", "</", "<a", '<a b="', "<a b='x", "&",
    "<![CDATA[<x>]]>", "<!-- ", "<?xml version='1.0'?>\n<a/>", "𝒳<a>𝒳</a>", "<a></b></a>", "a < b > c", "\t<a/>\n\n",
)  # fmt: skip


@in_browser
def test_the_paper_has_the_text(visit: Callable[..., Any]) -> None:
    """Whatever is written, each character is painted once, also after edits in the middle, and lines lie on each other."""
    page = ready(visit(expected="404"))
    for text in DOCUMENTS:
        write(page, "prompt", text or "x")
        if not text:
            page.keyboard.press("Backspace")
        assert text_of(page, "prompt") == text
    write(page, "prompt", "<a>\n" + "word " * 300 + "\n\n<b/>\n" + "x" * 400)
    page.keyboard.press("Control+Home")
    page.keyboard.press("ArrowDown")
    for key in ("Enter", "ArrowRight", "Delete", "Enter", "Backspace"):
        page.keyboard.press(key)
        text_of(page, "prompt")
    heights = page.evaluate(
        "['textarea', '.paper'].map((each) => document.querySelector(`#prompt ${each}`).scrollHeight)"
    )
    assert heights[0] == heights[1]
    assert heights[0] > 230


@in_browser
def test_the_cursor_stays_in_sight(visit: Callable[..., Any]) -> None:
    """In a text that is higher than its editor, the cursor and the place of a chosen diagnostic are scrolled into sight."""
    page = ready(visit())

    def scrolled() -> float:
        return float(page.evaluate("document.querySelector('#prompt').scrollTop"))

    write(page, "prompt", '<prompt schema="travel">\n<maimi/>' + "\n" * 60 + "<user>x</user>\n</prompt>")
    page.locator("#prompt-marks li").wait_for()
    assert scrolled() > 500
    page.keyboard.press("Control+Home")
    wait(page, lambda: scrolled() == 0)
    page.keyboard.press("Control+End")
    wait(page, lambda: scrolled() > 500)
    page.click("#prompt-marks button")
    wait(page, lambda: scrolled() < 30)


@in_browser
def test_choosing_modules_edits_the_prompt_and_the_picture(visit: Callable[..., Any]) -> None:
    """A box adds or removes a module with its parents; a union keeps one member; fields are arguments."""
    page = ready(visit())
    drawn = pictures(page)
    shown = page.inner_html("#picture")
    page.get_by_label("trip-plan").uncheck()
    wait(page, lambda: len(drawn) == 1)
    page.get_by_label("paris").check()
    wait(page, lambda: len(drawn) == 2)

    assert text_of(page, "prompt").split("\n")[1:] == [
        "  <paris/>",
        "  <user>What is the best club of Miami?</user>",
        "</prompt>",
    ]
    assert drawn[0] != drawn[1]
    assert page.inner_html("#picture") != shown
    assert page.get_by_label("miami", exact=True).get_attribute("type") == "radio"
    page.get_by_label("miami-by-night").check()
    assert not page.get_by_label("paris").is_checked()
    assert page.get_by_label("miami", exact=True).is_checked()
    assert "<miami><miami-by-night/></miami>" in text_of(page, "prompt")
    page.get_by_label("trip-plan").check()
    page.get_by_label("duration").fill('two & a "half"')
    assert '<trip-plan duration="two &amp; a &quot;half&quot;"/>' in text_of(page, "prompt")
    page.get_by_label("duration").fill("")
    assert "<trip-plan/>" in text_of(page, "prompt")


ODD = """<schema name="R&amp;D&quot;&lt;b&gt;'">Text.
<module name="größe">Size <parameter name="maß" length="9"/><parameter name="unit" length="4" type="choice" choices="&quot;|&amp;m"/>
<module name="inner">Deep.</module></module>
<collection name="notes"><module name="text-1">One.</module></collection></schema>"""


@in_browser
def test_names_are_escaped(visit: Callable[..., Any], open_server: Served) -> None:
    """Names that are no names of elements, and signs of XML in names and values, make prompts that are valid."""
    with open_server.http("root") as client:
        path = f"/v1/schemas/{quote(NAME, safe='')}"
        assert client.put(path, content=ODD.encode(), headers=XML).status_code == 201
        page = ready(visit())
        page.select_option("#schemas", NAME)
        page.get_by_label("inner").check()
        page.get_by_label("maß").fill('2 & "3"')
        page.get_by_label("unit").select_option('"')
        until(page, "document.querySelector('#picture').ariaLabel.includes('reuses')")  # the prompt is valid
        written = text_of(page, "prompt")
        assert page.locator(".marks li").count() == 0
        assert page.get_by_label("maß").input_value() == '2 & "3"'
        assert '<use module="größe" unit="&quot;"><arg name="maß">2 &amp; &quot;3&quot;</arg><inner/></use>' in written
        write(page, "prompt", "<prompt schema=")
        page.keyboard.press("Control+Space")
        page.wait_for_selector(".completions:not([hidden])")
        accept(page, NAME)
        assert text_of(page, "prompt") == '<prompt schema="R&amp;D&quot;&lt;b>&apos;"'
        page.close()
        assert client.delete(path).status_code == 200


NAME = "R&D\"<b>'"


UNIONS = """<schema name="travel"><union name="tone"><module name="calm">Calm.</module><module name="loud">Loud.</module></union>
<union default="short"><module name="short">Short.</module><module name="long">Long.</module></union></schema>"""


@in_browser
def test_a_union_has_a_choice_for_no_member(visit: Callable[..., Any]) -> None:
    """Of an optional union, "none" removes the member; a default is named there, and is chosen if no member is."""
    page = ready(visit())
    write(page, "schema", UNIONS)
    write(page, "prompt", '<prompt schema="travel"><calm/></prompt>')
    page.get_by_label("short by default").wait_for()
    groups = page.get_by_role("radiogroup").all()

    assert [each.get_attribute("aria-label") for each in groups] == ["one of tone", "one of"]
    assert page.get_by_label("short by default").is_checked()
    page.get_by_label("long").check()
    assert text_of(page, "prompt") == '<prompt schema="travel"><calm/><long/></prompt>'
    page.get_by_label("none").check()
    page.get_by_label("short by default").check()
    assert text_of(page, "prompt") == '<prompt schema="travel"></prompt>'


@pytest.fixture(scope="module")
def collection(open_server: Served) -> Iterator[str]:
    """A schema with a collection of 300 members on the server."""
    lines = "".join(
        json.dumps({"name": f"note-{number:03}", "text": f"Note {number}."}) + "\n" for number in range(300)
    )
    document = """<schema name="kb"><module name="box"><collection name="docs" min="1" max="3">
    <module name="größe">Used.</module></collection></module><example>
    <prompt schema="kb"><box><docs><use module="größe"/></docs></box><user>Which?</user></prompt></example></schema>"""
    with open_server.http("root") as client:
        made = client.put("/v1/schemas/kb", content=document.encode(), headers=XML)
        assert made.status_code == 201, made.text
        path, headers = "/v1/schemas/kb/members/box/docs", {"content-type": "application/jsonl"}
        assert client.post(path, content=lines, headers=headers).status_code == 200
        yield "kb"
        assert client.delete("/v1/schemas/kb").status_code == 200


def visit_collection(visit: Callable[..., Any], name: str) -> Any:
    """Open the page at a schema, and wait for the picture of its prompt."""
    page = ready(visit())
    page.select_option("#schemas", name)
    page.get_by_label("Member of box/docs", exact=True).wait_for()
    return page


@in_browser
def test_members_of_a_collection_are_added_and_removed(visit: Callable[..., Any], collection: str) -> None:
    """A field offers the names of members that the server has; buttons remove members, the last with its collection."""
    page = visit_collection(visit, collection)
    field = page.get_by_label("Member of box/docs", exact=True)
    offered = "[...document.querySelectorAll('#modules datalist option')].map((each) => each.value)"
    assert "1 to 3 members" in page.inner_text("#modules")
    field.click()
    until(page, f"{offered}.length === 100")
    field.press_sequentially("note-29")
    until(page, f"{offered}.length === 10 && {offered}[0] === 'note-290'")
    field.fill("note-299")
    field.press("Enter")
    field.fill("note-001")
    page.get_by_label("Add a member of box/docs").click()

    assert '<docs><use module="größe"/><note-299/><note-001/></docs>' in text_of(page, "prompt")
    assert field.input_value() == ""
    until(page, "document.querySelector('#picture').ariaLabel.includes('reuses')")
    assert page.locator(".marks li").count() == 0
    page.get_by_label("Remove note-299").click()
    page.get_by_label("Remove größe").click()
    assert page.locator(".members li").all_inner_texts() == ["note-001\n×"]
    assert "<docs><note-001/></docs>" in text_of(page, "prompt")
    page.get_by_label("Remove note-001").click()
    assert "docs" not in text_of(page, "prompt")
    assert page.evaluate("document.activeElement.ariaLabel") == "Member of box/docs"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Hold every item of an answer until it is released."""
    gate = threading.Semaphore(0)
    submit = Service.submit_request

    def held(self: Service, request: Any, listener: Callable[[Any], None]) -> Any:
        def listen(item: Any) -> None:
            gate.acquire(timeout=20)
            listener(item)

        return submit(self, request, listen)

    monkeypatch.setattr(Service, "submit_request", held)
    return gate


@in_browser
def test_tokens_appear_as_they_come_and_stop_cancels(
    visit: Callable[..., Any], open_server: Served, gate: threading.Semaphore
) -> None:
    """The beginning of an answer is shown before its end exists; Stop ends the request on the server."""
    page = ready(visit())
    page.click("#run")
    gate.release(4)
    until(page, "document.querySelector('#answer').textContent.length > 3")
    shown = page.inner_text("#answer")

    assert "The best club of Miami is the Blue Note.".startswith(shown)
    assert page.is_hidden("#results")
    gate.release(100)
    page.wait_for_selector("#results:not([hidden])")
    assert page.inner_text("#answer") == "The best club of Miami is the Blue Note."
    while gate.acquire(blocking=False):
        pass
    page.click("#run")
    gate.release(3)
    until(page, "document.querySelector('#answer').textContent.length > 3")
    page.click("#stop")
    until(page, "document.querySelector('#finish').textContent === 'Stopped.'")
    gate.release(100)
    wait_until(lambda: open_server.state.service.counts.num_running == 0)
    assert page.is_enabled("#run")
    assert page.inner_text("#answer") != "The best club of Miami is the Blue Note."


@in_browser
@pytest.mark.parametrize("limit", ["0", "-3", "1.5", ""])
def test_a_limit_of_no_tokens_is_refused(visit: Callable[..., Any], limit: str) -> None:
    """A limit that is no whole number from 1 asks the server nothing; a message in sight says what is allowed."""
    page = ready(visit())
    bodies = prompts_of(page)
    page.set_viewport_size({"width": 390, "height": 500})
    page.fill("#max-tokens", limit)
    for button in ("#run", "#compare"):
        page.click(button)
        assert "a whole number from 1" in page.inner_text("#trouble")
    box = page.locator("#trouble").bounding_box()
    assert 0 <= box["y"] < box["y"] + box["height"] <= 500
    page.fill("#max-tokens", "3")
    run(page)

    assert [each["max_tokens"] for each in bodies] == [3]
    assert page.is_hidden("#trouble")


@in_browser
def test_no_half_of_the_page_is_empty(visit: Callable[..., Any]) -> None:
    """Before and after an answer, prompt and schema end at one height, and the layout has the width of both."""
    page = ready(visit())

    def ends() -> tuple[float, float, bool]:
        boxes = [
            page.locator(each).bounding_box() for each in ("#schema", "section:has(#answer)", "section:has(#schema)")
        ]
        tall = boxes[0]["height"] > 0.7 * boxes[2]["height"]
        return boxes[1]["y"] + boxes[1]["height"], boxes[2]["y"] + boxes[2]["height"], tall

    first = ends()
    run(page)
    second = ends()
    picture, page_width = page.locator("#picture").bounding_box(), page.locator("main").bounding_box()["width"]

    assert first[0] == first[1] < second[0] == second[1]
    assert first[2]
    assert second[2]
    assert picture["width"] > 0.99 * page_width
    assert picture["y"] > second[0]


@in_browser
def test_the_first_token_is_compared_with_plain_prefill(visit: Callable[..., Any]) -> None:
    """Both answers have a bar and their steps in milliseconds; the plain one asked the server to reuse nothing."""
    page = ready(visit())
    bodies = prompts_of(page)
    page.click("#compare")
    page.wait_for_selector(".bar:nth-child(2)")
    rows = [row.split("\t") for row in page.locator("#times tr").all_inner_texts()]

    assert [each["reuse"] for each in bodies] == [True, True, False]
    assert rows[0] == ["step", "With reuse, ms", "Ordinary prefill, ms"]
    assert [row[0] for row in rows[1:]] == ["plan", "fetch", "prefill", "decode", "to the first token"]
    for column in (1, 2):
        steps = [float(row[column]) for row in rows[1:]]
        assert abs(sum(steps[:3]) - steps[4]) < 1.2  # rounded
    assert "The answer is the same." in page.inner_text("#same")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(visit: Callable[..., Any], scheme: str) -> None:
    """All text has the contrast of WCAG AA with what is behind it. The theme follows the system, else the choice."""
    page = ready(visit(color_scheme=scheme, expected="400"))
    write(page, "prompt", '<prompt schema="travel"><maimi/>&amp;</prompt>')
    page.locator("#prompt-marks li").wait_for()
    page.click("#run")
    page.wait_for_selector("#trouble:not([hidden])")

    assert page.evaluate(_CONTRAST) == []
    is_white = "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
    assert page.evaluate(is_white) == (scheme == "light")
    page.select_option("#theme", {"light": "dark", "dark": "light"}[scheme])
    page.reload()
    assert page.evaluate(is_white) == (scheme == "dark")


_CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((each) => each / 255).map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!hasText || !node.checkVisibility() || node.closest(":disabled")) continue;
    const [one, other] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) found.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@in_browser
def test_a_narrow_screen_needs_no_scrolling_sideways(visit: Callable[..., Any]) -> None:
    """At 375 pixels the editors are one below the other, and nothing is wider than the screen, results included."""
    page = ready(visit(375))
    page.click("#compare")
    page.wait_for_selector(".bar:nth-child(2)")
    prompt, schema = page.locator("#prompt").bounding_box(), page.locator("#schema").bounding_box()

    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert prompt["x"] == schema["x"]
    assert prompt["y"] + prompt["height"] < schema["y"]
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= each.clientWidth)"
    )


FORM = f"""<schema name="form"><module name="order">{"".join(f'<parameter name="the-name-of-field-{number}" length="4"/>' for number in range(9))}
</module><example><prompt schema="form"><order/><user>Go.</user></prompt></example></schema>"""


@in_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_fields_of_a_long_form_do_not_touch(visit: Callable[..., Any], width: int) -> None:
    """Fields that have no room in one row are below each other, with space between them."""
    page = ready(visit(width))
    write(page, "schema", FORM)
    write(page, "prompt", '<prompt schema="form"><order/></prompt>')
    fields = page.locator("#modules .argument input")
    until(page, "document.querySelectorAll('#modules .argument:not([hidden])').length === 9")
    boxes = [each.bounding_box() for each in fields.all()]
    rows = sorted({each["y"] for each in boxes})

    assert 4 <= len(rows) <= 9
    assert all(above + boxes[0]["height"] + 3 <= below for above, below in pairwise(rows)), rows


@in_browser
def test_our_schemas_open_with_a_valid_prompt(visit: Callable[..., Any], open_server: Served) -> None:
    """The page begins with an example of a schema that can be run as it is."""
    engine = open_server.state.engine
    names = [engine.add_schema(each).name for each in sorted(TRAVEL.parent.glob("*.xml"))]
    page = ready(visit())
    for name in names:
        page.select_option("#schemas", name)
        until(page, f"document.querySelector('#picture b').textContent === '{name}'")
        assert page.locator(".marks li").count() == 0
        assert page.get_attribute("#picture", "aria-label").endswith("reuses and adds"), name
    page.close()
    for name in {*names} - {"travel"}:
        engine.remove_schema(name)


_FOCUS = """() => {
  const each = document.activeElement, style = getComputedStyle(each.closest('.editor') ?? each);
  return [each.id || each.dataset.module || each.ariaLabel, style.outlineStyle !== 'none' || style.boxShadow !== 'none'];
}"""


@in_browser
def test_the_keyboard_is_enough(visit: Callable[..., Any]) -> None:
    """Tab reaches a module, the editor and the buttons, and leaves the editor; the focus is visible; Ctrl+Enter runs."""
    page = ready(visit())
    seen: list[str] = []
    for _ in range(20):
        page.keyboard.press("Tab")
        name, is_shown = page.evaluate(_FOCUS)
        seen.append(name)
        assert is_shown, seen
        if seen[-1] == "miami":  # the chosen member of the union
            page.keyboard.press("ArrowDown")
            seen[-1] = page.evaluate("document.activeElement.dataset.module")
        if seen[-1] == "prompt-text":
            page.keyboard.press("Control+Home")
            page.keyboard.insert_text(" ")
            page.keyboard.press("Escape")
        if seen[-1] == "run":
            break

    stops = ["schemas", "paris", "prompt-text", "run"]
    assert [each for each in seen if each in stops] == stops
    assert text_of(page, "prompt").startswith(" <prompt")
    assert "<paris/>" in text_of(page, "prompt")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#results:not([hidden])")
    assert page.inner_text("#answer")


@in_browser
def test_without_a_schema_the_page_says_what_to_do(visit: Callable[..., Any]) -> None:
    """The editors have a valid example, and the page says how the server gets a schema."""
    page = visit()
    page.route("**/v1/schemas", lambda route: route.fulfill(json={"object": "list", "data": []}))
    page.reload()
    ready(page)

    assert page.locator(".marks li").count() == 0
    assert "--schema FILE" in page.inner_text("#trouble")
    assert page.get_by_label("miami").is_checked()


@in_browser
def test_markup_of_others_is_shown_as_text(visit: Callable[..., Any]) -> None:
    """Markup in an answer, in names, in documentation and in messages makes no element and runs nothing."""
    page = ready(visit(expected="404"))
    quoted = HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    served = text_of(page, "schema")
    write(page, "schema", f'<schema name="travel"><module name="a"><doc>{quoted}</doc>{quoted}</module></schema>')
    page.get_by_label("a", exact=True).wait_for()
    write(page, "prompt", f'<prompt schema="{quoted}"><a/></prompt>')
    until(page, "document.querySelector('#prompt-marks').textContent.includes('<img')")
    assert "<img src=x" in str(page.text_content("#picture"))
    write(page, "schema", served)
    body = f"data: {json.dumps(ANSWER_OF_OTHERS)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/prompts", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    run(page)

    assert page.inner_text("#answer") == HOSTILE
    assert HOSTILE in page.inner_text("#reused")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.evaluate("window.hit") is None


ANSWER_OF_OTHERS = {
    "choices": [{"delta": {"content": HOSTILE}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
    "prompt_cache": {
        "modules": [{"module": HOSTILE, "source": "hit", "num_tokens": 1}],
        "timing": dict.fromkeys(("plan_s", "fetch_s", "link_s", "prefill_s", "decode_s", "ttft_s"), 1),
    },
}


@in_browser
def test_a_new_schema_is_saved_before_it_runs(visit: Callable[..., Any], open_server: Served) -> None:
    """Run offers to save a new schema, if it has no problems, asks for an admin key until it is right, and goes on."""
    page = ready(visit(expected="403"))
    asked = prompts_of(page)
    page.select_option("#schemas", "New schema")
    until(page, "document.querySelector('#picture').textContent.includes('my-schema')")
    assert page.locator(".marks li").count() == 0
    written = text_of(page, "schema")
    write(page, "schema", written.replace("crab", "crab &"))
    page.click("#run")
    until(page, "document.querySelector('#trouble').textContent.includes('has problems')")
    write(page, "schema", written)
    page.click("#run")
    page.click("#trouble button")
    for key, reason in (("eve", "Saving needs an admin key"), ("root", "This is not an admin key")):
        until(page, f"document.querySelector('#key-reason').textContent.startsWith('{reason}')")
        page.fill("#key-value", key)
        page.keyboard.press("Enter")
    page.wait_for_selector("#results:not([hidden])")

    assert page.input_value("#schemas") == "my-schema"
    assert page.inner_text("#schema-note") == "Saved: the server has this schema now."
    assert re.search(r"trip-plan\t(memory|encoded)", page.inner_text("#reused"))
    assert len(asked) == 1
    kept = "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
    assert page.evaluate(kept) == "{}{}"
    page.close()  # it still checks the prompt, and would find no schema
    with open_server.http("root") as client:
        assert client.delete("/v1/schemas/my-schema").status_code == 200


@in_browser
def test_an_edit_while_a_schema_is_saved_stays_unsaved(visit: Callable[..., Any], open_server: Served) -> None:
    """The server has the text that was sent, so the rest of the edit can still be saved."""
    page = ready(visit())
    schema = '<schema name="notes"><module name="a">The river of Rome is {}.</module></schema>'
    held: list[Any] = []
    page.route("**/v1/schemas/notes", lambda route: held.append(route) if not held else route.continue_())
    with open_server.http("root") as client:
        write(page, "schema", schema.format("Alba"))
        page.wait_for_selector("#save:not([hidden])")
        page.click("#save")
        wait(page, lambda: bool(held))
        write(page, "schema", schema.format("Nera"))
        assert client.put("/v1/schemas/notes", content=schema.format("Alba"), headers=XML).status_code == 201
        answers: list[str] = []
        page.on("response", lambda each: answers.append(f"{each.request.method} {urlsplit(each.url).path}"))
        held[0].fulfill(status=201, content_type="application/json", body="{}")
        until(page, "document.querySelector('#schemas').value === 'notes'")
        saved, drawn = "GET /v1/schemas/notes", "POST /v1/layout.html"  # the page then checks the text, and draws it
        wait(page, lambda: saved in answers and drawn in answers[answers.index(saved) :])

        assert page.is_visible("#save")
        assert page.inner_text("#schema-note").startswith("Edited here only")
        page.close()
        assert client.delete("/v1/schemas/notes").status_code == 200


@in_browser
def test_a_key_is_asked_for_when_the_server_needs_one(visit: Callable[..., Any], served: Served) -> None:
    """A server with keys shows the field and nothing else works; a wrong key asks again, a right one opens the page."""
    page = visit(url=served.url, expected="401")
    page.wait_for_selector("#key:not([hidden])")
    page.fill("#key-value", "eve")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#key-reason').textContent.includes('does not know this key')")
    held: list[Any] = []
    for path in ("check", "models"):
        page.route(f"**/v1/{path}", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    write(page, "prompt", "<prompt")  # an edit is checked
    wait(page, lambda: len(held) == 1)
    page.fill("#key-value", "alice")
    page.keyboard.press("Enter")
    wait(page, lambda: len(held) == 2)
    with page.expect_response("**/v1/check"):
        held[0].continue_()  # the answer to the old key comes after the new key was given
    held[1].continue_()
    ready(page)

    assert page.is_hidden("#key")
    run(page)


@in_browser
def test_calls_of_tools_are_answered_by_hand(visit: Callable[..., Any], tools: Served) -> None:
    """Tools of modules need no typing. A call is shown with its arguments, and the answer goes on behind the typed result."""
    page = ready(visit(url=tools.url, expected="ERR_FAILED"))
    until(page, "document.querySelector('#tools-found').textContent.endsWith('weather, time')")
    bodies: list[dict[str, Any]] = []

    def force(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        choice = "required" if len(bodies) < 3 else "none"
        route.continue_(post_data=json.dumps({**bodies[-1], "tool_choice": choice, "parallel_tool_calls": False}))

    page.route("**/v1/prompts", force)
    page.click("#tools summary")
    page.fill("#tool-definitions", json.dumps([{**TOOLS[0], "function": {"name": "weather", "strict": True}}]))
    page.fill("#max-tokens", "100")
    page.click("#run")
    page.wait_for_selector("#calls:not([hidden])")
    name = page.inner_text("#calls b")
    assert name in page.inner_text("#calls code") != name
    page.fill("#calls textarea", "7 degrees & <b>rain</b>")
    page.route("**/v1/prompts", lambda route: route.abort(), times=1)
    page.click("#calls button")
    page.wait_for_selector("#trouble:not([hidden])")
    assert page.inner_text("#answer") == ""
    assert page.input_value("#calls textarea") == "7 degrees & <b>rain</b>"  # nothing is lost
    page.click("#calls button")
    until(page, "document.querySelector('#calls textarea')?.value === ''")  # the next call
    page.click("#calls button")
    until(page, "document.querySelector('#calls').hidden && document.querySelector('#finish').textContent !== ''")

    assert [each["function"]["name"] for each in bodies[0]["tools"]] == ["weather", "time"]
    assert bodies[0]["tools"][0]["function"] == {"name": "weather", "strict": True}
    called, result, *later = bodies[2]["messages"]
    assert [each["function"]["name"] for each in called["tool_calls"]] == [name]
    assert result == {
        "role": "tool",
        "tool_call_id": called["tool_calls"][0]["id"],
        "content": "7 degrees & <b>rain</b>",
    }
    assert (bodies[0]["messages"], bodies[1]["messages"]) == ([], [called, result])
    assert [each["role"] for each in later] == ["assistant", "tool"]
    assert "→ 7 degrees & <b>rain</b>" in page.inner_text("#answer")
    page.fill("#tool-definitions", "[")
    page.click("#run")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "The tools are not JSON" in page.inner_text("#trouble")
    assert page.is_hidden("#calls")


def offered(page: Any, editor: str, text: str) -> list[str]:
    """Write a text, and return the names that are offered behind it."""
    write(page, editor, text)
    page.keyboard.press("Control+Space")
    page.wait_for_selector(".completions:not([hidden])")
    labels: list[str] = page.locator(".completions:not([hidden]) b").all_inner_texts()
    return labels


def test_the_page_and_its_files_are_served_and_no_others(open_server: Served) -> None:
    """The page names no other host, and its policy allows none and nothing inline; its files have declared types."""
    page = open_server.get("/", None, headers={"accept": "text/html,*/*;q=0.8"})
    listed = open_server.get("/", None)
    types = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}
    types["elements.json"] = "application/json"  # made from the declarations of the language
    found = {name: open_server.get(f"/page/{name}", None) for name in types}

    policy = page.headers["content-security-policy"]
    assert page.headers["content-type"].startswith("text/html")
    assert listed.headers["content-type"].startswith("text/plain")
    assert CHATS in listed.text
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert not [each for each in ("http", "unsafe", "nonce", "data:") if each in policy]
    assert "http" not in page.text
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page.text) == []
    assert "set-cookie" not in page.headers
    assert {name: each.headers["content-type"].partition(";")[0] for name, each in found.items()} == types
    assert "reserve" in [each["name"] for each in found["elements.json"].json()["module"]["attributes"]]
    assert {each.headers["x-content-type-options"] for each in (page, *found.values())} == {"nosniff"}
    for name in ("../limits.py", "..%2flimits.py", "%2e%2e/app.py", "nothing.js", "/etc/passwd"):
        assert open_server.get(f"/page/{name}", None).status_code == 404


PATHS = (
    '<prompt schema="kb"><use module="box/docs/',
    "<prompt schema='kb'><use module='/box/docs/",
    '<prompt schema="kb"><box><use module="docs/',
    '<prompt schema="kb"><box><docs><note-001/><use module="',
)


@in_browser
def test_members_are_completed(visit: Callable[..., Any], collection: str) -> None:
    """In a collection, and in a path that leads there, members are completed from the server's list by their prefix."""
    page = visit_collection(visit, collection)
    asked: list[str] = []
    page.on("request", lambda each: "/members/" in each.url and asked.append(urlsplit(each.url).query))
    notes, start = [f"note-12{digit}" for digit in range(10)], '<prompt schema="kb"><box><docs>'

    assert [each for each in offered(page, "prompt", f"{start}<note-12") if "note" in each] == notes
    assert asked == ["prefix=note-12&limit=100"]
    accept(page, "note-123")
    assert text_of(page, "prompt") == f"{start}<note-123/>"
    assert "größe" in offered(page, "prompt", f"{start}<g")
    accept(page, "größe")
    assert text_of(page, "prompt") == f'{start}<use module="größe"/>'
    assert "note-123" in offered(page, "prompt", f"{start}<note-001/><note-12")
    assert not {each for each in offered(page, "prompt", '<prompt schema="kb"><') if "note" in each}
    for path in PATHS:
        page.keyboard.press("Escape")
        assert [each for each in offered(page, "prompt", f"{path}note-12") if each.startswith("note")] == notes
        accept(page, "note-123")
        assert text_of(page, "prompt") == f"{path}note-123"
