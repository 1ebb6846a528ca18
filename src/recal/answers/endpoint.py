"""Asking a language model over HTTP: any server that speaks OpenAI's chat completions and returns logprobs.

Answers are kept in an append-only JSONL file as they arrive. A request that is in it is never sent again. The key comes
from the environment variable OPENAI_API_KEY and is written nowhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.logs import token_positions
from recal.answers.prompts import Asking
from recal.answers.scores import JoinedViews, OptionScores, answer_row, join_scores, unique_ids
from recal.errors import FileError, InputError, MissingExtraError, RecalError

# Characters per token of English text, to estimate a cost.
_CHARACTERS_PER_TOKEN = 4.0
_MOST_TOP = 20  # what OpenAI and vLLM allow


class EndpointError(RecalError):
    """A server that cannot be asked, or that does not return what is needed."""


@dataclass(frozen=True)
class Endpoint:
    """A language model behind an address such as http://localhost:8000/v1.

    Parameters
    ----------
    url : the address up to and including the version, as the `openai` client takes it
    model : the model's name on the server
    max_tokens : how many tokens an answer may have; 1 for an answer without reasoning
    top_logprobs : how many of the likeliest tokens the server returns for each position
    timeout : seconds until a request is given up and repeated
    retries : how often a request is repeated after 429, a server error or a lost connection, with growing pauses
    concurrency : how many requests are under way at the same time
    """

    url: str
    model: str
    max_tokens: int = 1
    top_logprobs: int = _MOST_TOP
    timeout: float = 60.0
    retries: int = 6
    concurrency: int = 8

    def key_of(self, prompt: str) -> str:
        """Return what identifies a request: everything that decides the answer."""
        content = [self.url.rstrip("/"), self.model, self.max_tokens, self.top_logprobs, prompt]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def ask(self, client: Any, prompt: str) -> list[tuple[str, dict[str, float]]]:
        """Return the tokens of the answer, each with the likeliest tokens in its place; none for a refused request."""
        import openai

        settings = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0.0}
        try:
            response = client.chat.completions.create(
                **settings, max_tokens=self.max_tokens, logprobs=True, top_logprobs=self.top_logprobs
            )
        except openai.AuthenticationError as error:
            raise EndpointError(
                f"{self.url} refuses the key ({error.status_code}). Set OPENAI_API_KEY to a valid one."
            ) from error
        except openai.BadRequestError as error:
            if getattr(error, "code", None) == "content_filter":
                return []
            raise EndpointError(f"{self.url} refuses the request: {_message(error)}") from error
        except openai.NotFoundError as error:
            raise EndpointError(f"{self.url} has no model {self.model!r}: {_message(error)}") from error
        except openai.APITimeoutError as error:
            raise EndpointError(
                f"{self.url} gave no answer within {self.timeout:g} seconds, {self.retries + 1} times."
            ) from error
        except openai.APIStatusError as error:
            raise EndpointError(
                f"{self.url} answered {error.status_code} after {self.retries + 1} attempts: {_message(error)}"
            ) from error
        except openai.APIConnectionError as error:
            raise EndpointError(f"{self.url} cannot be reached: {error.__cause__ or error}.") from error
        body = response.model_dump()
        positions = token_positions(body)
        refused = bool(((body.get("choices") or [{}])[0].get("message") or {}).get("refusal"))
        if not positions and not refused:
            raise EndpointError(
                f"{self.url} returned no logprobs for {self.model!r}, which recal needs. Not every server or model has "
                "them."
            )
        return positions

    def client(self) -> Any:
        """Return the client; the key is read from the environment by it and kept nowhere else."""
        try:
            import openai
        except ImportError:
            raise MissingExtraError("openai", "llm", "Asking a language model") from None
        key = os.environ.get("OPENAI_API_KEY") or "none"  # local servers ask for none
        return openai.OpenAI(base_url=self.url, api_key=key, timeout=self.timeout, max_retries=self.retries)


def _message(error: Any) -> str:
    return " ".join(str(getattr(error, "message", error)).split())[:300].rstrip(".") + "."


class Ledger:
    """Answers that were paid for: one JSON line each, appended as they arrive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, list[tuple[str, dict[str, float]]]] = {}
        self._lock = threading.Lock()
        if path.exists():
            self._read()

    def _read(self) -> None:
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]  # a killed run may leave half a line
        if len(complete) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(complete))
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                record = json.loads(line)
                self.answers[str(record["key"])] = [(str(token), dict(top)) for token, top in record["tokens"]]
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(f"{self.path}, line {number} is damaged: {error}. Remove it to ask again.") from error

    def add(self, key: str, tokens: list[tuple[str, dict[str, float]]]) -> None:
        """Keep an answer on disk, then in memory."""
        line = json.dumps({"key": key, "tokens": tokens}, ensure_ascii=False).encode() + b"\n"
        with self._lock:
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
    questions : columns by name, such as `read_table` gives
    options : the answers, such as A, B, C, D
    askings : templates and orders of the options; the first gives the logits, the others are views
    ledger : path of the file of answers
    labels : the right option of each question, optional
    """

    def __init__(
        self,
        endpoint: Endpoint,
        questions: dict[str, NDArray[Any]],
        options: Sequence[str],
        askings: Sequence[Asking],
        ledger: Path,
        labels: NDArray[Any] | None = None,
    ) -> None:
        if len(options) < 2 or len(set(options)) != len(options):
            raise InputError("must be two or more distinct answers", argument="options", came=f"got {list(options)}")
        self.endpoint, self.options, self.askings, self.labels = endpoint, tuple(options), list(askings), labels
        self.ledger = Ledger(ledger)
        n_questions = len(next(iter(questions.values())))
        rows = [{name: _shown(values[row]) for name, values in questions.items()} for row in range(n_questions)]
        self.ids = unique_ids([row.get("id", row.get("custom_id", place)) for place, row in enumerate(rows)])
        self.prompts = [[asking.template.fill(row, self.options, asking.order) for row in rows] for asking in askings]

    def cost(self) -> Cost:
        """Return how many requests are left, and about how many tokens they take."""
        prompts = [prompt for ways in self.prompts for prompt in ways]
        left = self._left()
        tokens = sum(len(prompt) / _CHARACTERS_PER_TOKEN for prompt in left.values())
        kept = len({self.endpoint.key_of(prompt) for prompt in prompts}) - len(left)
        return Cost(len(left), kept, round(tokens), len(left) * self.endpoint.max_tokens)

    def _left(self) -> dict[str, str]:
        keyed = {self.endpoint.key_of(prompt): prompt for ways in self.prompts for prompt in ways}
        return {key: prompt for key, prompt in keyed.items() if key not in self.ledger.answers}

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Send what has no answer yet. After an error or Ctrl-C, the answers so far are kept."""
        left = self._left()
        if not left:
            return
        client = self.endpoint.client()
        self.ledger.path.parent.mkdir(parents=True, exist_ok=True)
        stop = threading.Event()

        def ask(key: str, prompt: str) -> None:
            if not stop.is_set():
                self.ledger.add(key, self.endpoint.ask(client, prompt))
                progress(len(left) - len(left.keys() - self.ledger.answers.keys()), len(left))

        with ThreadPoolExecutor(self.endpoint.concurrency) as pool:
            tasks = [pool.submit(ask, key, prompt) for key, prompt in left.items()]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()  # what waits is not sent; what is under way ends and is kept
                for task in tasks:
                    task.cancel()
            _raise_first(tasks)

    def views(self, floor: float | None = None) -> JoinedViews:
        """Return the answers as Views: the options' log-probabilities, mapped back to the original order."""
        runs = {}
        for asking, prompts in zip(self.askings, self.prompts):
            rows = [answer_row(self.ledger.answers[self.endpoint.key_of(prompt)], self.options) for prompt in prompts]
            runs[asking.name] = OptionScores(self.ids, np.array(rows)[:, asking.columns()], self.options, None)
        first, *others = runs
        main = OptionScores(self.ids, runs[first].log_probs, self.options, self.labels)
        return join_scores(main, {name: runs[name] for name in others}, floor)


def _raise_first(tasks: Iterable[Any]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _shown(value: Any) -> str:
    """Return a value of a table as it goes into a prompt."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
