"""Two real vLLM engines behind Envoy with the filter: does cache_aware get more prefix-cache hits than round_robin?

Run by scripts/check-vllm with the Python of the virtual environment; the argument is the directory for everything.
Hits are those of the engines' own counters. Ends with 1 when the answer is no.
"""

import concurrent.futures
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import model
import workload

ENGINES = 2
# Memory of an engine in tokens: a little more than half of what the workload leaves behind (about 35,000 tokens), so
# that two engines hold all of it together and neither holds all of it alone.
BLOCK_TOKENS = 16
CACHE_TOKENS = int(os.environ.get("CACHE_TOKENS") or 20_000)
POLICIES = ["round_robin", "cache_aware"]
# Several, since round robin's hits are a matter of luck.
ROUNDS = int(os.environ.get("ROUNDS") or 3)
# How many times round_robin's hit rate is a clear win. On this workload it can be 1.6 at most.
CLEARLY = 1.3
# Of the requests, for each engine: all conversations on one engine would be no win.
LEAST_SHARE = 0.25
# An engine starts in 20 s on an idle machine.
PATIENCE = 600.0


def main() -> int:
    directory = Path(sys.argv[1]).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    model.build(directory / "model", workload.sample())
    with contextlib.ExitStack() as running:
        engines = [start_engine(running, directory, number + 1) for number in range(ENGINES)]
        print(f"starting {ENGINES} vLLM engines", file=sys.stderr)
        for engine in engines:
            engine.wait_for_health()
        rows = []
        for number in range(ROUNDS):
            for policy in POLICIES:
                rows.append(measure(policy, number, engines, directory))
                print(f"round {number + 1} of {ROUNDS}, {policy}: {share(rows[-1]['hit_rate'])} hits", file=sys.stderr)
    results = {policy: summary([row for row in rows if row["policy"] == policy]) for policy in POLICIES}
    (directory / "result.json").write_text(json.dumps(results, indent=2) + "\n")
    print("tokens of prompts, as counted by the engines (vllm:prefix_cache_queries_total, vllm:prefix_cache_hits_total):")
    show(results)
    return verdict(results)


class Engine:
    """A vLLM process on a port of its own."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log

    def wait_for_health(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            if self.process.poll() is not None:
                tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-30:])
                sys.exit(f"{tail}error: vLLM has ended at its start; its whole log is {self.log}")
            with contextlib.suppress(OSError):
                get(self.url + "/health")
                return
            if time.monotonic() > deadline:
                sys.exit(f"error: vLLM did not answer /health within {PATIENCE:.0f} s; its log is {self.log}")
            time.sleep(0.2)

    def counters(self):
        """Tokens that were looked up in the prefix cache, and those that were found."""
        text = get(self.url + "/metrics")
        return [total(text, f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits")]

    def forget(self):
        get(self.url + "/reset_prefix_cache", b"")


def start_engine(running, directory, number) -> Engine:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = directory / f"engine-{number}.log"
    command = [Path(sys.executable).with_name("vllm"), "serve", directory / "model"]
    command += ["--served-model-name", workload.MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "4096", "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(CACHE_TOKENS // BLOCK_TOKENS)]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # For /reset_prefix_cache.
        "VLLM_SERVER_DEV_MODE": "1",
    }
    with log.open("w") as output:
        process = start(running, command, env=environment, stdout=output, stderr=output)
    return Engine(process, f"http://127.0.0.1:{port}", log)


def measure(policy, number, engines, directory) -> dict:
    """One policy: a fresh Envoy, empty caches, the workload."""
    for engine in engines:
        engine.forget()
    before = [engine.counters() for engine in engines]
    with contextlib.ExitStack() as running:
        gateway, admin = start_stack(running, policy, engines, directory)
        wait_for_reports(admin)
        with concurrent.futures.ThreadPoolExecutor(1) as beside:
            # What the sidecar reads of engines that have something to do.
            look = beside.submit(sidecar_check, engines, directory) if number == 0 and policy == POLICIES[-1] else None
            answers = workload.run(gateway.removeprefix("http://"), seed=number + 1)
        if look:
            print(look.result())
        reports = wait_for_reports(admin)
    after = [engine.counters() for engine in engines]
    queries, hits = (
        sum(new[which] - old[which] for new, old in zip(after, before, strict=True)) for which in (0, 1)
    )
    return {
        "policy": policy,
        "hit_rate": hits / queries,
        "hits": hits,
        "queries": queries,
        "first": sorted(answer.first for answer in answers),
        "requests_per_engine": [sum(answer.worker == engine.url for answer in answers) for engine in engines],
        "requests": len(answers),
        "reports": reports,
    }


def start_stack(running, policy, engines, directory):
    """Envoy and sidecar in front of the engines; URLs of the gateway and of the admin endpoint."""
    up = Path(directory.parent, "debug/up")
    command = [up, "--workers", " ".join(engine.url for engine in engines), "--policy", policy]
    command += ["--ip", "127.0.0.1", "--port", "0", "--admin-port", "0", "--load-monitor-interval", "0.5"]
    command += ["--concurrency", "2", "--log-level", "warn"]
    environment = {key: value for key, value in os.environ.items() if key != "CONFIG"}
    process = start(running, command, env=environment, stdout=subprocess.PIPE, text=True)
    said = {}
    for line in process.stdout:
        name, _, value = line.strip().partition("  ")
        said[name] = value.strip()
        if name == "ready":
            return said["gateway"], said["admin"]
    sys.exit(f"error: Envoy did not start under {policy}; see its message above")


def sidecar_check(engines, directory) -> str:
    """What `sidecar-loadmonitor check` says of the engines while they work."""
    time.sleep(3)
    command = [Path(directory.parent, "debug/sidecar-loadmonitor"), "check", *(engine.url for engine in engines)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        sys.exit(f"error: the sidecar learns nothing from vLLM:\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_for_reports(admin) -> int:
    """How many of the sidecar's reports the filter has taken up to now; waits for the first."""
    deadline = time.monotonic() + 60
    while True:
        taken = total(get(admin + "/stats/prometheus"), "smg_load_reports_total", 'outcome="taken"')
        if taken or time.monotonic() > deadline:
            return int(taken)
        time.sleep(0.2)


def start(running, command, **options):
    """Starts a process that ends with this one, whatever ends it."""
    libc = ctypes.CDLL(None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # ctrl-c is for this process, which ends its children in order.
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),  # PR_SET_PDEATHSIG
        **options,
    )
    running.callback(end, process)
    return process


def end(process):
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def get(url, data=None) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
        return answer.read().decode()


def total(text, name, label="") -> float:
    """The sum of a metric's samples in Prometheus text, those with this label."""
    samples = re.findall(rf"^{re.escape(name)}(\{{.*\}})? (\S+)", text, re.MULTILINE)
    return sum(float(value) for labels, value in samples if label in labels)


def summary(rows) -> dict:
    first = sorted(seconds for row in rows for seconds in row["first"])
    hits, queries = (sum(row[key] for row in rows) for key in ("hits", "queries"))
    return {
        "requests": sum(row["requests"] for row in rows),
        "requests_per_engine": [sum(each) for each in zip(*(row["requests_per_engine"] for row in rows), strict=True)],
        "prefix_cache_queries": int(queries),
        "prefix_cache_hits": int(hits),
        "hit_rate": hits / queries,
        "hit_rates": [row["hit_rate"] for row in rows],
        "ttft_p50_ms": 1000 * first[len(first) // 2],
        "ttft_p90_ms": 1000 * first[len(first) * 9 // 10],
        "reports_taken": [row["reports"] for row in rows],
    }


def share(number) -> str:
    return f"{100 * number:.1f} %"


def show(results):
    head = ("policy", "requests", "per engine", "looked up", "hits", "computed", "hit rate", "TTFT p50", "p90", "reports taken")
    table = [head]
    for policy, result in results.items():
        table.append((
            policy,
            str(result["requests"]),
            " + ".join(map(str, result["requests_per_engine"])),
            f"{result['prefix_cache_queries']:,}",
            f"{result['prefix_cache_hits']:,}",
            f"{result['prefix_cache_queries'] - result['prefix_cache_hits']:,}",
            share(result["hit_rate"]),
            f"{result['ttft_p50_ms']:.0f} ms",
            f"{result['ttft_p90_ms']:.0f} ms",
            str(sum(result["reports_taken"])),
        ))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]))


def verdict(results) -> int:
    wrong = []
    plain, aware = results["round_robin"]["hit_rate"], results["cache_aware"]["hit_rate"]
    if not aware >= CLEARLY * plain:
        wrong.append(f"cache_aware's hit rate is {share(aware)}, less than {CLEARLY} times round_robin's {share(plain)}")
    for policy, result in results.items():
        if not all(result["reports_taken"]):
            wrong.append(f"under {policy} no load report of the sidecar was taken by the filter")
        if sum(result["requests_per_engine"]) != result["requests"]:
            wrong.append(f"under {policy} not every answer names a worker of ours in x-smg-routed-worker-id")
        if min(result["requests_per_engine"]) < LEAST_SHARE * result["requests"]:
            wrong.append(f"under {policy} an engine got less than {share(LEAST_SHARE)} of the requests")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
