"""Asking a language model over HTTP: any server that speaks OpenAI's chat completions and returns
logprobs.

Questions are asked with templates and with several orders of the options; each way to ask is a
view. Answers are appended to a JSONL file as they arrive, and a request in that file is never sent
again. The key comes from the environment variable OPENAI_API_KEY and is never written to disk.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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

# Characters per token of English text, to estimate the cost.
_CHARACTERS_PER_TOKEN = 4.0
_MOST_TOP = 20  # what OpenAI and vLLM allow


class EndpointError(RecalError):
    """A server that cannot be reached, or that does not return what recal needs."""


@dataclass(frozen=True)
class Endpoint:
    """A language model behind an address such as http://localhost:8000/v1.

    Parameters
    ----------
    url : the address up to and including the version, as for the `openai` client
    model : the model's name on the server
    max_tokens : how many tokens an answer may have; 1 for an answer without reasoning
    top_logprobs : how many of the likeliest tokens the server returns for each position
    timeout : seconds until a request is given up and repeated
    retries : how often a request is repeated after a 429, a server error or a lost connection, with
    growing pauses concurrency : how many requests are under way at the same time
    """

    url: str
    model: str
    max_tokens: int = 1
    top_logprobs: int = _MOST_TOP
    timeout: float = 60.0
    retries: int = 6
    concurrency: int = 8

    def key_of(self, prompt: str) -> str:
        """Return a key that identifies a request: it covers everything that determines the answer."""
        content = [self.url.rstrip("/"), self.model, self.max_tokens, self.top_logprobs, prompt]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def ask(self, client: Any, prompt: str) -> list[tuple[str, dict[str, float]]]:
        """Return the answer's tokens, each with the likeliest tokens at its position; none for a
        refused request.
        """
        import openai

        try:
            response = client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": prompt}],
                temperature=0.0,
                max_tokens=self.max_tokens,
                logprobs=True,
                top_logprobs=self.top_logprobs,
            )
        except openai.APIError as error:
            if getattr(error, "code", None) == "content_filter":
                return []
            raise EndpointError(f"{self.url} {self._reason(error)}") from error
        body = response.model_dump()
        positions = token_positions(body)
        refused = bool(((body.get("choices") or [{}])[0].get("message") or {}).get("refusal"))
        if not positions and not refused:
            raise EndpointError(
                f"{self.url} returned no logprobs for {self.model!r}, which recal needs. Not every server or model has "
                "them."
            )
        return positions

    def _reason(self, error: Any) -> str:
        import openai

        message = " ".join(str(error.message).split())[:300].rstrip(".") + "."
        if isinstance(error, openai.AuthenticationError):
            return f"refuses the key ({error.status_code}). Set OPENAI_API_KEY to a valid one."
        if isinstance(error, openai.BadRequestError):
            return f"refuses the request: {message}"
        if isinstance(error, openai.NotFoundError):
            return f"has no model {self.model!r}: {message}"
        if isinstance(error, openai.APITimeoutError):
            return f"gave no answer within {self.timeout:g} seconds, {self.retries + 1} times."
        if isinstance(error, openai.APIConnectionError):
            return f"cannot be reached: {error.__cause__ or error}."
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
            base_url=self.url, api_key=key, timeout=self.timeout, max_retries=self.retries
        )

    def answer(
        self,
        prompts: Iterable[str],
        ledger: Ledger,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Send the prompts that the ledger has no answer to.

        It keeps the answers so far after an error or Ctrl-C.
        """
        keyed = {self.key_of(prompt): prompt for prompt in prompts}
        left = {key: prompt for key, prompt in keyed.items() if key not in ledger.answers}
        if not left:
            return
        client, numbers, stop = self.client(), itertools.count(1), threading.Event()

        def ask(key: str, prompt: str) -> None:
            if not stop.is_set():
                ledger.add(key, self.ask(client, prompt))
                progress(next(numbers), len(left))

        with ThreadPoolExecutor(self.concurrency) as pool:
            tasks = [pool.submit(ask, key, prompt) for key, prompt in left.items()]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()  # do not send waiting requests; let running requests finish, and keep their answers
                for task in tasks:
                    task.cancel()
        for task in tasks:
            if not task.cancelled():
                task.result()  # raises the error of the task


class Ledger:
    """Answers received so far: one JSON line each, appended as they arrive.

    Without a path they are not stored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.answers: dict[str, list[tuple[str, dict[str, float]]]] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]  # a killed run may leave half a line
        if len(complete) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(complete))
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                record = json.loads(line)
                self.answers[str(record["key"])] = [
                    (str(token), dict(top)) for token, top in record["tokens"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(
                    f"{path}, line {number} is damaged: {error}. Remove it to ask again."
                ) from error

    def add(self, key: str, tokens: list[tuple[str, dict[str, float]]]) -> None:
        """Store an answer on disk, then in memory."""
        line = json.dumps({"key": key, "tokens": tokens}, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(line)
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
        self.endpoint, self.options, self.askings, self.labels = (
            endpoint,
            check_options(options),
            askings,
            labels,
        )
        check_beginnings(self.options, endpoint.max_tokens)
        self.ledger = Ledger(ledger)
        rows = [dict(zip(questions, values)) for values in zip(*questions.values())]
        self.ids = row_ids(rows)
        self.prompts = [
            [asking.template.fill(row, self.options, asking.order) for row in rows]
            for asking in askings
        ]

    @property
    def asked(self) -> Asked:
        """What determines the answers, to be kept with the views."""
        one = self.endpoint
        settings = [("max tokens", str(one.max_tokens)), ("top logprobs", str(one.top_logprobs))]
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
        prompts = {self.endpoint.key_of(prompt): prompt for ways in self.prompts for prompt in ways}
        left = [prompt for key, prompt in prompts.items() if key not in self.ledger.answers]
        tokens = round(sum(map(len, left)) / _CHARACTERS_PER_TOKEN)
        return Cost(
            len(left), len(prompts) - len(left), tokens, len(left) * self.endpoint.max_tokens
        )

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Send the prompts that have no answer yet.

        After an error or Ctrl-C, the answers so far are kept.
        """
        self.endpoint.answer(itertools.chain(*self.prompts), self.ledger, progress)

    def views(self, floor: float | None = None) -> JoinedViews:
        """Return the answers as Views: the options' log-probabilities, mapped back to the original
        order.
        """
        runs = {}
        for asking, prompts in zip(self.askings, self.prompts):
            answers = [self.ledger.answers[self.endpoint.key_of(prompt)] for prompt in prompts]
            rows, named = answer_rows(answers, self.options)
            shown = asking.columns()
            named = np.array([shown.index(one) if one >= 0 else one for one in named])
            runs[asking.name] = OptionScores(self.ids, rows[:, shown], self.options, named=named)
        main = replace(runs.pop(self.askings[0].name), labels=self.labels)
        return join_scores(main, runs, floor, self.asked)
