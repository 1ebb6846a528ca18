"""A server on the loopback interface that speaks chat completions, and misbehaves on request."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Script:
    """What the server does: `answer(prompt)` gives tokens with probabilities; `faults` come first,
    one per request.
    """

    def __init__(self, answer, faults=()):
        self.answer, self.faults = answer, list(faults)
        self.requests, self.keys, self.lock = [], set(), threading.Lock()

    def prompts(self):
        return Counter(request["messages"][0]["content"] for request in self.requests)


def positions(tokens):
    content = []
    for token, top in tokens:
        listed = [{"token": name, "logprob": math.log(share)} for name, share in top.items()]
        content.append({**listed[0], "token": token, "top_logprobs": listed})
    return content


@contextmanager
def serving(script):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with script.lock:
                fault = script.faults.pop(0) if script.faults else None
                script.keys.add(self.headers.get("Authorization"))
                if fault is None:
                    script.requests.append(request)
            if fault == "slow":
                time.sleep(0.6)
            if isinstance(fault, bytes):
                return self.reply(200, fault)
            if isinstance(fault, str) and fault.startswith("http"):
                return self.reply(307, {}, fault)
            if isinstance(fault, tuple):
                return self.reply(*fault)
            if isinstance(fault, int):
                return self.reply(fault, {"error": {"message": f"fault {fault}"}})
            tokens = script.answer(request["messages"][0]["content"])
            words, tokens = (tokens, []) if isinstance(tokens, str) else ("", tokens)
            message = {"content": words or "".join(token for token, _ in tokens or [])}
            if tokens is None:
                message = {"content": None, "refusal": "I cannot help with that."}
            logprobs = {"content": positions(tokens)} if tokens else None
            return self.reply(200, {"choices": [{"message": message, "logprobs": logprobs}]})

        def reply(self, status, body, location=None):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("retry-after-ms", "1")
                if location is not None:
                    self.send_header("Location", location)
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has given up

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
