"""The frame that all pages share: header, navigation, theme, rights, shortcuts; the dialog that confirms actions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from nicegui import events, ui

from isochrone.console.pages.actions import Action, action_of
from isochrone.console.places import ASSETS, LOGIN, MOUNT

#: Path, title and shortcut of every page, in the order of the navigation. Those with the beginning of an
#: operation's path appear when the controller has it.
PAGES: Final = (
    ("/", "Fleet", "f", ""),
    ("/latency", "Latency", "l", ""),
    ("/rollouts", "Rollouts", "r", ""),
    ("/events", "Events", "e", ""),
    ("/request", "One request", "o", "/v1/why/"),
    ("/what-if", "What if", "w", "/v1/what-if"),
)
#: What the operation of a page needs, beyond what every page does.
_PERMISSIONS: Final = {"/v1/why/": "records"}
_SHORTCUTS: Final = (
    *(((f"g {key}"), f"go to {title}") for _, title, key, _ in PAGES),
    ("t", "light, dark, or as the system"),
    ("/", "filter, where a page has one"),
    ("?", "this list"),
    ("Esc", "close a dialog"),
)
#: The dialog of each page that asks for a confirmation, if there is one, and its place.
_questions: dict[str, tuple[ui.element, ui.dialog]] = {}


def head() -> str:
    """For the head of every page. The theme is set before anything is drawn."""
    return (
        f'<link rel="stylesheet" href="{ASSETS}/theme.css"><link rel="stylesheet" href="{ASSETS}/console.css">'
        "<script>document.documentElement.dataset.theme = localStorage.getItem('isochrone-theme') || 'auto'</script>"
        f'<script type="module" src="{ASSETS}/console.js"></script>'
    )


@contextmanager
def framed(path: str) -> Iterator[None]:
    """The frame around one page: ``with framed("/"):``."""
    title = next(title for each, title, _, _ in PAGES if each == path)
    ui.page_title(f"{title} – Isochrone")
    with ui.element("a").classes("skip").props('href="#main"'):
        ui.label("Skip to the content")
    with ui.element("header").classes("bar"):
        with ui.element("a").classes("brand").props(f'href="{MOUNT}/"'):
            ui.label("Isochrone")
            ui.element("span").props('data-live="fleet-name"')
        with ui.element("nav").props('aria-label="Pages"'):
            for each, name, key, operation in PAGES:
                link = ui.element("a").props(f'href="{MOUNT}{each}" data-key="{key}"').classes("page")
                if each == path:
                    link.props("aria-current=page")
                if operation:
                    link.props(
                        f'data-operation="{operation}" data-permission="{_PERMISSIONS.get(operation, "")}" hidden'
                    )
                with link:
                    ui.label(name)
        with ui.element("div").classes("tools"):
            ui.element("span").props('data-live="connection" role=status')
            _rights_button()
            _button("◐", "Theme: light, dark, or as the system").props("data-theme-button")
            _shortcuts_button()
    # NiceGUI's own page is the landmark "main": a second one inside it would confuse readers of screens.
    with ui.element("div").props("id=main tabindex=-1"):
        ui.element("div").props('data-live="warnings" role=alert')
        with ui.element("h1").classes("unseen"):
            ui.label(title)
        yield
    ui.element("div").classes("toast").props('data-live="toast" role=status aria-live=polite')
    ui.on("console-action", _asked)
    page = ui.context.client.id
    ui.context.client.on_delete(lambda: _forget_question(page))


def section(title: str, live: str, hint: str = "") -> None:
    """A titled part of a page that the browser draws."""
    with ui.element("section").classes("card").props(f'aria-label="{title}"'):
        with ui.element("h2"):
            ui.label(title)
            if hint:
                ui.label(hint).classes("hint")
        ui.element("div").props(f'data-live="{live}"')


def confirm(action: Action) -> None:
    """Ask; on yes, the browser sends the operation with the token of its session."""
    page = ui.context.client.id
    _forget_question(page)
    call = json.dumps(asdict(action))
    # NiceGUI draws a dialog elsewhere, and leaves an element in its place that only goes with what is around it.
    with ui.element("div") as place:
        place.set_visibility(False)
        dialog = ui.dialog()
    _questions[page] = (place, dialog)
    with dialog, ui.card().classes("dialog").props('role=alertdialog aria-modal="true"'):
        with ui.element("h2"):
            ui.label(action.title)
        ui.label(action.explanation)
        with ui.element("div").classes("buttons"):
            _button("Cancel", "Cancel").on("click", dialog.close).props("autofocus")
            yes = _button(action.label, action.label).classes("grave" if action.is_grave else "main")
            yes.props("data-confirm")
            # In the browser alone, in the turn of the click.
            yes.on("click", js_handler=f"() => isochrone.act({call})")
            yes.on("click", dialog.close)
    dialog.on("hide", lambda: _forget_question(page))
    dialog.open()


def _forget_question(page: str) -> None:
    for each in _questions.pop(page, ()):
        if not each.is_deleted:
            each.delete()


def _asked(event: events.GenericEventArguments) -> None:
    given = event.args if isinstance(event.args, dict) else {}
    action = action_of(str(given.get("kind", "")), str(given.get("about", "")))
    if action is not None:
        confirm(action)


def _button(text: str, name: str) -> ui.element:
    with ui.element("button").props(f'type=button aria-label="{name}" title="{name}"').classes("button") as button:
        ui.label(text)
    return button


def _rights_button() -> None:
    """The token is never sent to this server's pages, only with actions: the fields have no listener here. Where people
    log in, there are no fields."""
    with ui.dialog() as dialog, ui.card().classes("dialog").props('role=dialog aria-label="Rights"'):
        with ui.element("h2"):
            ui.label("Rights")
        ui.element("p").props("data-live=rights-text")
        with ui.element("label").classes("own-token"):
            ui.label("Your name, for the fleet's events")
            ui.element("input").props('data-user type=text maxlength=100 autocomplete=off name="user"')
        with ui.element("label").classes("own-token"):
            ui.label("Token; kept until this tab is closed")
            ui.element("input").props('data-token type=password autocomplete=off name="token"')
        with ui.element("div").classes("buttons"):
            with ui.element("a").classes("button main log-in").props(f'href="{LOGIN}"'):
                ui.label("Log in")
            leave = _button("Log out", "Log out").classes("log-out").props("data-log-out")
            leave.on("click", js_handler="() => isochrone.logOut()")
            forget = _button("Forget", "Forget the token").classes("own-token").on("click", dialog.close)
            forget.on("click", js_handler="() => isochrone.useToken('', '')")
            use = _button("Use", "Use this token").classes("main own-token").on("click", dialog.close)
            use.props("data-use-token").on("click", js_handler="() => isochrone.useFields()")
    _button("Rights", "Rights of this browser").props("data-rights-button").on("click", dialog.open)


def _shortcuts_button() -> None:
    with ui.dialog() as dialog, ui.card().classes("dialog").props('role=dialog aria-label="Shortcuts"'):
        with ui.element("h2"):
            ui.label("Keys")
        with ui.element("dl").classes("keys"):
            for keys, meaning in _SHORTCUTS:
                with ui.element("dt"):
                    for key in keys.split():
                        with ui.element("kbd"):
                            ui.label(key)
                with ui.element("dd"):
                    ui.label(meaning)
        with ui.element("div").classes("buttons"):
            _button("Close", "Close").on("click", dialog.close)
    _button("?", "Keys").props("data-help").on("click", dialog.open)
