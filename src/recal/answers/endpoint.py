"""Asking a language model over HTTP: any server that speaks OpenAI's chat completions and returns
logprobs.

Questions are asked with templates and with several orders of the options; each way to ask is a
view. Answers are appended to a JSONL file as they arrive, and a request in that file is never sent
again. The key comes from the environment variable OPENAI_API_KEY and is never written to disk.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from recal.answers.logs import token_positions
from recal.answers.scores import (
    JoinedViews,
    OptionScores,
    answer_rows,
    check_beginnings,
    check_options,
    join_scores,
    row_ids,
)
from recal.answers.templates import Asked, Asking
from recal.errors import FileError, MissingExtraError, RecalError
from recal.files.ledger import Journal
from recal.progress import counting
from recal.schema import Count, Number, Size, check, check_parameters

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
    timeout : seconds until a request is given up and repeated
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
        """Return a key that identifies a request: it covers everything that determines the answer."""
        content = [self.url.rstrip("/"), self.model, self.max_tokens, self.top_logprobs, prompt]
        if self.temperature:
            content += [self.temperature, self.sample]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def ask(self, client: Any, prompt: str) -> Tokens:
        """Return the answer's tokens, each with the likeliest tokens at its position; none for a
        refused request.
        """
        import openai

        try:
            body = self._completion(client, prompt)
            positions = token_positions(body)
        except openai.APIError as error:
            if getattr(error, "code", None) == "content_filter":
                return []
            kind = AnswerError if isinstance(error, openai.BadRequestError) else EndpointError
            raise kind(f"{public_url(self.url)} {self._reason(error)}") from error
        except FileError as error:  # log-probabilities of another form
            raise AnswerError(f"{public_url(self.url)}: {error}") from error
        message = body["choices"][0].get("message") or {}
        text = message.get("content")
        if not positions and isinstance(text, str) and not self.needs_logprobs:
            positions = [(word, {}) for word in re.findall(r"\s*\S+", text)]
        if not positions and not message.get("refusal"):
            raise AnswerError(
                f"{public_url(self.url)} returned no logprobs for {self.model!r}, which recal needs. "
                "Not every server or model has them. If only some answers lack them, use --on-error "
                "skip: they count as unanswered."
                if self.needs_logprobs
                else f"{public_url(self.url)} returned an empty answer. If only some answers are "
                "empty, use --on-error skip, or raise --max-tokens."
            )
        return positions

    def _completion(self, client: Any, prompt: str) -> dict[str, Any]:
        """Return a chat completion; repeat the request if the response is not one."""
        likeliest = {"logprobs": True, "top_logprobs": self.top_logprobs}
        for _ in range(self.retries + 1):
            try:
                response = client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=self.temperature,
                    max_tokens=self.max_tokens,
                    **({"seed": self.sample} if self.temperature else {}),
                    **(likeliest if self.top_logprobs else {}),
                )
            except ValueError:  # it is not JSON, or was cut off
                continue
            if getattr(response, "choices", None):
                body: dict[str, Any] = response.model_dump()
                return body
        raise AnswerError(
            f"{public_url(self.url)} returned no chat completion, {self.retries + 1} times. The "
            "address of most servers ends in /v1."
        )

    def _reason(self, error: Any) -> str:
        import openai

        message = " ".join(str(error.message).split())[:300].rstrip(".") + "."
        if isinstance(error, openai.AuthenticationError):
            return f"refuses the key ({error.status_code}). Set OPENAI_API_KEY to a valid one."
        if isinstance(error, openai.BadRequestError):
            return f"refuses the request: {message}"
        if getattr(error, "status_code", 0) in range(300, 400):
            address = public_url(error.response.headers.get("location", "another address"))
            return f"redirects to {address}, which recal does not follow. Ask that address itself."
        if isinstance(error, openai.NotFoundError):
            return f"has no model {self.model!r}: {message}"
        if isinstance(error, openai.APITimeoutError):
            return f"gave no answer within {self.timeout:g} seconds, {self.retries + 1} times."
        if isinstance(error, openai.APIConnectionError):
            return f"cannot be reached: {str(error.__cause__ or error).rstrip('.')}."
        return f"answered {getattr(error, 'status_code', '')} after {self.retries + 1} attempts: {message}"

    def client(self) -> Any:
        """Return the client, which reads the key from the environment; the key is stored nowhere
        else.
        """
        try:
            import openai
        except ImportError:
            raise MissingExtraError("openai", "llm", "Asking a language model") from None
        key = os.environ.get("OPENAI_API_KEY") or "none"  # local servers need no key
        return openai.OpenAI(
            base_url=self.url,
            api_key=key,
            timeout=self.timeout,
            max_retries=self.retries,
            # Prompts and the key go to no host that the user did not name.
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )

    def answer(self, prompts: Iterable[str], ledger: AnswerLog, on_error: str = "stop") -> None:
        """Send the prompts that the ledger has no answer to.

        It keeps the answers so far after an error or Ctrl-C. With `on_error="skip"`, requests
        without a usable answer are left open, unless none gets one.
        """
        left = {self.key_of(prompt): prompt for prompt in prompts}
        left = {key: prompt for key, prompt in left.items() if key not in ledger.answers}
        if not left:
            return
        client, stop, n_before = self.client(), threading.Event(), len(ledger.answers)
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
                    ledger.add(key, self.ask(client, prompt))
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
            try:
                tokens = [(str(token), dict(top)) for token, top in record["tokens"]]
                self.answers[str(record["key"])] = tokens
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, key: str, tokens: Tokens) -> None:
        """Store an answer on disk, then in memory."""
        with self._lock:
            self._journal.path.parent.mkdir(parents=True, exist_ok=True)
            self._journal.append({"key": key, "tokens": tokens})
            self.answers[key] = tokens


@dataclass(frozen=True)
class Cost:
    """The number of requests of a run and an estimate of their tokens."""

    n_requests: int
    n_kept: int
    prompt_tokens: int
    answer_tokens: int

    def __str__(self) -> str:
        kept = f" {self.n_kept:,} others are answered already." if self.n_kept else ""
        return (
            f"{self.n_requests:,} requests, about {self.prompt_tokens:,} prompt tokens and at most "
            f"{self.answer_tokens:,} answer tokens.{kept}"
        )


class Interview:
    """All questions in all ways to ask them, and the answers so far.

    Parameters
    ----------
    endpoint : the server
    questions : columns by name, as `read_table` returns them
    options : the answers, such as A, B, C, D
    askings : templates and orders of the options; the first gives the logits, the others are views
    ledger : the path of the file of answers
    labels : the right option of each question, optional

    Attributes
    ----------
    needed : for each question, whether it is asked in the other ways too
    """

    def __init__(
        self,
        endpoint: Endpoint,
        questions: Mapping[str, NDArray[Any]],
        options: Sequence[str],
        askings: Sequence[Asking],
        ledger: Path,
        labels: NDArray[Any] | None = None,
    ) -> None:
        self.endpoint, self.askings, self.labels = endpoint, askings, labels
        self.options = check_options(options)
        check_beginnings(self.options, endpoint.max_tokens)
        check(endpoint.top_logprobs, Number(1, whole=True), "top_logprobs")
        self.ledger = AnswerLog(ledger)
        rows = [dict(zip(questions, values)) for values in zip(*questions.values())]
        self.ids, _ = row_ids(rows)
        self.needed: Sequence[bool] = [True] * len(rows)
        self.prompts = [
            [asking.template.fill(row, self.options, asking.order) for row in rows]
            for asking in askings
        ]

    @property
    def asked(self) -> Asked:
        """What determines the answers, to be kept with the views."""
        one = self.endpoint
        names = ("max_tokens", "top_logprobs", "temperature")
        settings = [(name, f"{getattr(one, name):g}") for name in names]
        texts = {f"template {way.template.name}": way.template.text for way in self.askings}
        first = self.askings[0].template.text
        return (
            ("model", one.model),
            ("options", *self.options),
            ("first template", first),
            *texts.items(),
            *settings,
        )

    def cost(self) -> Cost:
        """Return the number of requests left, and an estimate of their tokens."""
        prompts = {self.endpoint.key_of(prompt): prompt for prompt in self._needed_prompts()}
        left = [prompt for key, prompt in prompts.items() if key not in self.ledger.answers]
        tokens = round(sum(map(len, left)) / 4.0)  # characters per token of English text
        return Cost(
            len(left), len(prompts) - len(left), tokens, len(left) * self.endpoint.max_tokens
        )

    def run(self, on_error: str = "stop") -> None:
        """Send the prompts that have no answer yet.

        After an error or Ctrl-C, the answers so far are kept.
        """
        self.endpoint.answer(self._needed_prompts(), self.ledger, on_error)

    def first(self) -> Interview:
        """Return the same questions, asked in the first way only."""
        one = copy.copy(self)
        one.askings, one.prompts = self.askings[:1], self.prompts[:1]
        return one

    def _needed_prompts(self) -> list[str]:
        first, *others = self.prompts
        return first + [
            prompt for way in others for prompt, needed in zip(way, self.needed) if needed
        ]

    def views(self, floor: float | None = None) -> JoinedViews:
        """Return the answers as Views: the options' log-probabilities, mapped back to the original
        order.

        Questions whose views are not needed have the first answer in their place.
        """
        runs: dict[str, OptionScores] = {}
        unneeded = ~np.array(self.needed, dtype=bool)
        for asking, prompts in zip(self.askings, self.prompts):
            keys = map(self.endpoint.key_of, prompts)
            answers = [self.ledger.answers.get(key, []) for key in keys]
            rows, named = answer_rows(answers, self.options)
            shown = asking.columns()
            rows = rows[:, shown]
            named = np.array([shown.index(one) if one >= 0 else one for one in named])
            if runs:
                main = runs[self.askings[0].name]
                rows[unneeded] = main.log_probs[unneeded]
            runs[asking.name] = OptionScores(self.ids, rows, self.options, named=named)
        main = replace(runs.pop(self.askings[0].name), labels=self.labels)
        return join_scores(main, runs, floor, self.asked)
