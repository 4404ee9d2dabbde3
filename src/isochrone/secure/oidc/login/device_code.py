"""A device authorization (RFC 8628): what the user is shown, and how often the provider is asked. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from isochrone.secure.oidc.addresses import is_allowed
from isochrone.secure.oidc.fetching import Answer
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.token_answers import described, error_code, refusal

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
#: Section 3.2: where the provider states none; section 3.5: what "slow_down" adds.
_INTERVAL: Final = 5.0
_LONGEST_INTERVAL: Final = 60.0
_LONGEST_LOGIN: Final = 1800.0


class DeviceCode(NamedTuple):
    device_code: str
    user_code: str
    url: str
    #: The same with the code in it; "": the provider has none.
    complete_url: str
    lifetime: float
    interval: float


def read_device_code(answer: Answer) -> DeviceCode:
    if answer.status != 200:
        raise refusal(answer)
    given = answer.document
    texts = [given.get(name, "") for name in ("device_code", "user_code", "verification_uri")]
    complete = given.get("verification_uri_complete", "")
    if not all(isinstance(each, str) and each.isprintable() for each in (*texts, complete)) or not all(texts):
        raise LoginFailed("the provider's answer has no device_code, user_code or verification_uri")
    for url in (texts[2], complete):
        # People open it: on another page than the provider's, they would enter a password.
        if url and not is_allowed(url.partition("?")[0], allow_http=False):
            raise LoginFailed("the provider's verification_uri is not https")
    lifetime, interval = _seconds(given.get("expires_in"), 300.0), _seconds(given.get("interval"), _INTERVAL)
    return DeviceCode(texts[0], texts[1], texts[2], complete, lifetime, interval)


def _seconds(given: object, otherwise: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return otherwise
    return float(min(max(given, 1.0), _LONGEST_LOGIN))


class Polling:
    """Asks at ``interval`` until an answer is final or the code has expired."""

    def __init__(self, code: DeviceCode, now: float) -> None:
        self.interval = code.interval
        self._ends = now + code.lifetime

    def check_time(self, now: float) -> None:
        if now + self.interval >= self._ends:
            raise LoginFailed("nobody confirmed the code in time; run the command again")

    def is_final(self, answer: Answer) -> bool:
        """Whether the answer has tokens; False: ask again. Raises ``LoginFailed``."""
        if answer.status == 200:
            return True
        code = error_code(answer)
        if code == "slow_down":
            self.interval = min(self.interval + 5.0, _LONGEST_INTERVAL)
        elif code == "access_denied":
            raise LoginFailed(f"the login was refused: {described(answer.document)}")
        elif code == "expired_token":
            raise LoginFailed("nobody confirmed the code in time; run the command again")
        elif code != "authorization_pending":
            raise refusal(answer)
        return False

    def failed(self) -> None:
        """No answer: the provider may be overloaded (section 3.5)."""
        self.interval = min(self.interval * 2, _LONGEST_INTERVAL)
