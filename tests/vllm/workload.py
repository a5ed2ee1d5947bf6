"""Conversations of several turns, and what comes of sending them through Envoy."""

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

MODEL = "tiny"
# About one token per word: a conversation begins with 200 tokens and ends with 1,200.
SYSTEM_PROMPTS = 8
SESSIONS = 32
TURNS = 6
SYSTEM_WORDS = 200
TURN_WORDS = 150
ANSWER_TOKENS = 16
CLIENTS = 4

WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city community name president team minute idea body information back parent face others
Straße über größer schön Fluss Brücke Käse être français déjà élève où niño mañana corazón información
система человек время работа вопрос 世界 你好 模型 缓存 请求 数据 東京 日本語 안녕 한국어
""".split()


@dataclass
class Answer:
    """What the client saw of one request."""

    status: int
    worker: str
    # Seconds to the first token.
    first: float
    prompt_tokens: int
    text: str


@dataclass
class Session:
    """One conversation."""

    messages: list
    questions: list
    answers: list = field(default_factory=list)


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def sample() -> str:
    """What the tokenizer is trained on."""
    return text(random.Random(7), 20000)


def sessions(seed: int) -> list:
    """The same conversations for the same seed."""
    rng = random.Random(seed)
    systems = [text(rng, SYSTEM_WORDS) for _ in range(SYSTEM_PROMPTS)]
    return [
        Session(
            messages=[{"role": "system", "content": systems[number % SYSTEM_PROMPTS]}],
            questions=[text(rng, TURN_WORDS) for _ in range(TURNS)],
        )
        for number in range(SESSIONS)
    ]


def run(address: str, seed: int) -> list:
    """Plays all conversations through `address` (host:port), CLIENTS requests at a time; all answers."""
    played = sessions(seed)
    rng = random.Random(seed + 1)
    with ThreadPoolExecutor(CLIENTS) as clients:
        for turn in range(TURNS):
            # In a fixed order round robin would meet the same engine at each turn of a conversation, by accident.
            rng.shuffle(played)
            for _ in clients.map(lambda session: ask(address, session, turn), played):
                pass
    return [answer for session in played for answer in session.answers]


def ask(address: str, session: Session, turn: int) -> None:
    session.messages.append({"role": "user", "content": session.questions[turn]})
    body = {
        "model": MODEL,
        "messages": session.messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"a request was answered {reply.status}: {reply.read(2000).decode(errors='replace')}")
        answer = Answer(reply.status, reply.headers.get("x-smg-routed-worker-id", ""), 0.0, 0, "")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: "):])
            if "error" in event:
                raise RuntimeError(f"a stream ended with {event['error']}")
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content") or ""
                if piece and not answer.first:
                    answer.first = time.monotonic() - start
                answer.text += piece
            if event.get("usage"):
                answer.prompt_tokens = event["usage"]["prompt_tokens"]
        answer.first = answer.first or time.monotonic() - start
    finally:
        connection.close()
    session.messages.append({"role": "assistant", "content": answer.text})
    session.answers.append(answer)
