"""Asking a language model over HTTP: any server that speaks OpenAI's chat completions.

Answers are appended to a JSONL file as they arrive, and a request in that file is never sent again.
The key comes from the environment variable OPENAI_API_KEY and is never written to disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from recal.answers.logs import token_positions
from recal.errors import FileError, InputError, RecalError, needs_extra
from recal.files.paths import Journal
from recal.progress import counting
from recal.schema import Choice, Count, Number, Size, check, check_parameters

Tokens = list[tuple[str, dict[str, float]]]


class EndpointError(RecalError):
    """A server that cannot be reached, or that does not return what recal needs."""


class AnswerError(EndpointError):
    """One request that got no answer, while others may get one."""


def public_url(url: str) -> str:
    """Return an address without user and password, as reports and messages show it.

    Examples
    --------
    >>> from recal.answers.endpoint import public_url
    >>> public_url("https://me:secret@example.org/v1")
    'https://example.org/v1'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass(frozen=True)
class Endpoint:
    """A language model behind an address such as http://localhost:8000/v1.

    Parameters
    ----------
    url : the address up to and including the version, as for the `openai` client
    model : the model's name on the server
    max_tokens : how many tokens an answer may have; 1 for an answer without reasoning
    top_logprobs : how many of the likeliest tokens the server returns for each position; 0 for a
        server that has none
    timeout : seconds until a request is given up and repeated; each further token of the answer
        adds 0.2 seconds, because slow machines write about five tokens per second
    retries : how often a request is repeated after a 429, a server error or a lost connection, with
        growing pauses
    concurrency : how many requests are under way at the same time
    temperature, sample : above 0, answers are drawn at random; the number tells draws apart
    needs_logprobs : whether an answer without log-probabilities is refused; otherwise its words
        take the place of tokens
    """

    url: str
    model: str
    max_tokens: Count = 1
    top_logprobs: Size = 20  # what OpenAI and vLLM allow
    timeout: Annotated[float, Number(0, ends="(]")] = 60.0
    retries: Size = 6
    concurrency: Count = 8
    temperature: float = 0.0
    sample: int = 0
    needs_logprobs: bool = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def key_of(self, prompt: str) -> str:
        """Return a key of a request: it covers everything that determines the answer."""
        content = [self.url.rstrip("/"), self.model, self.max_tokens, self.top_logprobs, prompt]
        if self.temperature:
            content += [self.temperature, self.sample]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def settings(self) -> dict[str, Any]:
        """Return the settings of every request; those that the model does not know are changed."""
        drawn = {"seed": self.sample} if self.temperature else {}
        likeliest = {"logprobs": True, "top_logprobs": self.top_logprobs}
        limits = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**limits, **drawn, **(likeliest if self.top_logprobs else {})}

    def ask(self, client: Any, prompt: str, settings: dict[str, Any]) -> Tokens:
        """Return the answer's tokens, each with the likeliest tokens at its position; none for a
        refused request.
        """
        import openai

        try:
            body = self._completion(client, prompt, settings)
            positions = token_positions(body)
        except openai.APIError as error:
            if getattr(error, "code", None) == "content_filter":
                return []
            kind = AnswerError if isinstance(error, openai.BadRequestError) else EndpointError
            raise kind(f"{public_url(self.url)} {self._reason(error)}") from error
        except FileError as error:  # log-probabilities of another form
            raise AnswerError(f"{public_url(self.url)}: {error}") from error
        found = body["choices"][0].get("message")
        message = found if isinstance(found, dict) else {}
        text = message.get("content")
        if not positions and isinstance(text, str) and not self.needs_logprobs:
            positions = [(word, {}) for word in re.findall(r"\s*\S+", text)]
        if not positions and not message.get("refusal"):
            lacks = "logprobs, which recal needs" if self.needs_logprobs else "text in --max-tokens"
            rule = f"{public_url(self.url)} returned no {lacks}"
            remedy = f"If only some answers of {self.model!r} are like this, use --on-error skip"
            raise AnswerError(rule, remedy=remedy)
        return positions

    def _completion(self, client: Any, prompt: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return a chat completion; repeat the request if the response is not one."""
        import openai

        for _ in range(self.retries + 1):
            sent, messages = dict(settings), [{"role": "user", "content": prompt}]
            try:
                response = client.chat.completions.create(
                    model=self.model, messages=messages, **sent
                )
            except openai.BadRequestError as error:
                # Reasoning models call the limit otherwise, and draw at their own temperature.
                is_unknown = str(error.code).startswith("unsupported") and error.param in sent
                if not is_unknown or error.param not in ("max_tokens", "temperature"):
                    raise
                settings.pop(error.param, None)
                if error.param == "max_tokens":
                    settings["max_completion_tokens"] = self.max_tokens
                return self._completion(client, prompt, settings)
            except (ValueError, RecursionError):  # it is not JSON, or was cut off
                continue
            if getattr(response, "choices", None):
                body: dict[str, Any] = response.model_dump(warnings=False)
                return body
        raise AnswerError(
            f"{public_url(self.url)} returned no chat completion, {self.retries + 1} times. The "
            "address of most servers ends in /v1."
        )

    def _reason(self, error: Any) -> str:
        status = getattr(error, "status_code", None)
        if status is None:
            why = str(error.__cause__ or error).rstrip(".")
            return f"cannot be reached or is too slow, {self.retries + 1} times: {why}."
        if status in range(300, 400):
            address = public_url(error.response.headers.get("location", "another address"))
            return f"redirects to {address}, which recal does not follow. Ask that address itself."
        message = re.sub(r"^Error code: \d+ - ", "", " ".join(str(error.message).split()))
        message = message[:300].rstrip(".")
        hint = " Set OPENAI_API_KEY to a valid key." if status == 401 else ""
        return f"answered {status} to {self.model!r}: {message}.{hint}"

    def client(self) -> Any:
        """Return the client, which reads the key from the environment; the key is stored nowhere
        else.
        """
        with needs_extra("llm", "Asking a language model"):
            import openai
        key = os.environ.get("OPENAI_API_KEY") or "none"  # local servers need no key
        if not (key.isascii() and key.isprintable()):
            rule = "OPENAI_API_KEY holds characters that no key has"
            raise InputError(rule, remedy="Set it again, without accents, quotes or line ends")
        return openai.OpenAI(
            base_url=self.url,
            api_key=key,
            timeout=self.timeout + 0.2 * (self.max_tokens - 1),
            max_retries=self.retries,
            # Prompts and the key go to no host that the user did not name.
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )

    def answer(self, prompts: Iterable[str], ledger: AnswerLog, on_error: str = "stop") -> None:
        """Send the prompts that the ledger has no answer to.

        It keeps the answers so far after an error or Ctrl-C. With `on_error="skip"`, requests
        without a usable answer are left open, unless none gets one.
        """
        check(on_error, Choice("stop", "skip"), "on_error")
        left = {self.key_of(prompt): prompt for prompt in prompts}
        left = {key: prompt for key, prompt in left.items() if key not in ledger.answers}
        if not left:
            return
        client, stop, n_before = self.client(), threading.Event(), len(ledger.answers)
        settings = self.settings()
        waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        for item in left.items():
            waiting.put(item)
        errors: list[BaseException] = []
        skipped: list[AnswerError] = []

        def work() -> None:
            while not stop.is_set():
                try:
                    key, prompt = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    ledger.add(key, self.ask(client, prompt, settings))
                except AnswerError as error:
                    skipped.append(error)
                    # A server that has answered nothing yet will not answer the rest.
                    hopeless = not ledger.answers and len(skipped) >= self.concurrency
                    if on_error != "skip" or hopeless:
                        errors.append(error)
                except BaseException as error:
                    errors.append(error)
                if errors:
                    stop.set()

        # Threads of an executor would be waited for at exit: minutes, if a server does not answer.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.concurrency)]
        for thread in threads:
            thread.start()
        try:
            with counting("answers", len(left)) as advance:
                while any(thread.is_alive() for thread in threads) and not stop.is_set():
                    stop.wait(0.05)
                    n_after = len(ledger.answers)
                    advance(n_after - n_before)
                    n_before = n_after
        finally:
            stop.set()
            deadline = time.monotonic() + min(self.timeout, 1.0)  # keep answers that arrive now
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        if errors:
            raise errors[0]


class AnswerLog:
    """Answers received so far: one JSON line each, appended as they arrive.

    Lines that a kill cut off or that hold something else are asked again.
    """

    def __init__(self, path: Path) -> None:
        self.answers: dict[str, Tokens] = {}
        self._journal = Journal(path)
        self._lock = threading.Lock()
        for record in self._journal.read():
            with suppress(ValueError, KeyError, TypeError):
                tokens = [(str(token), dict(top)) for token, top in record["tokens"]]
                self.answers[str(record["key"])] = tokens

    def add(self, key: str, tokens: Tokens) -> None:
        """Store an answer on disk, then in memory."""
        with self._lock:
            self._journal.path.parent.mkdir(parents=True, exist_ok=True)
            self._journal.append({"key": key, "tokens": tokens})
            self.answers[key] = tokens
