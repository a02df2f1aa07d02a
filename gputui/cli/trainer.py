"""A simulated training run, which the jobs of `gputui demo` execute.

It needs no GPU and computes nothing; it prints, at a believable pace, the output of a real run. The same options print
the same lines. Run it as `python -m gputui.cli.trainer --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn

DIM, BOLD, RED, GREEN, YELLOW, CYAN = ("\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m")
END = "\x1b[0m"


class Workload(NamedTuple):
    """A kind of training, with typical figures."""

    what: str
    parameters: str
    unit: str
    """Unit of throughput."""
    rate: float
    """Units per second and GPU."""
    loss: tuple[float, float]
    """Loss at the start, and its limit."""
    peak_rate: float
    """The highest learning rate."""
    memory: float
    """GiB in use on each GPU."""


WORKLOADS = {
    "llm": Workload("decoder-only transformer", "6.7B", "tok/s", 11_400, (10.6, 2.1), 3e-4, 68.2),
    "vision": Workload("vision transformer", "307M", "img/s", 1_180, (6.9, 1.3), 1e-3, 41.5),
    "diffusion": Workload("latent diffusion U-Net", "860M", "img/s", 96, (0.92, 0.11), 1e-4, 57.9),
    "speech": Workload("speech encoder-decoder", "769M", "frames/s", 52_000, (5.8, 0.42), 5e-4, 33.4),
}
WORDS = {
    "vision": ("vit", "resnet", "clip", "seg", "detect", "image"),
    "diffusion": ("diffusion", "unet", "sdxl", "flux"),
    "speech": ("whisper", "speech", "asr", "audio"),
}


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised when SIGTERM arrives."""


class TrainingRun:
    """State of one run: its options, random numbers and step."""

    def __init__(self, options: argparse.Namespace, gpus: Sequence[str] | None = None) -> None:
        """`gpus` are UUIDs; None: those given to this process."""
        self.options = options
        self.dice = random.Random(options.seed)  # noqa: S311 - a stand-in's numbers
        kinds: Iterator[str] = (
            kind for kind, words in WORDS.items() if any(word in options.name.lower() for word in words)
        )
        self.load = WORKLOADS[next(kinds, "llm")]
        names = map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
        here = tuple(name for name in names if name and name not in {"void", "none", "-1"})
        self.uuids = here if gpus is None else gpus
        self.gpus = max(1, len(self.uuids))
        self.step = 0
        self.best = math.inf
        self.must_save = False
        """True once SIGUSR1 has asked for a checkpoint, until it is written."""

    def loss(self, step: int) -> float:
        first, last = self.load.loss
        done: float = step / self.options.steps
        level = last + (first - last) * math.pow(1 + 60 * done, -0.85)
        spike = 1.25 if self.dice.random() < 0.01 else 1.0
        return level * spike * self.dice.gauss(1, 0.018)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate: linear warm-up over a twentieth of the steps, then a cosine down to a tenth."""
        steps: int = self.options.steps
        warm = max(1, steps // 20)
        if step < warm:
            return self.load.peak_rate * step / warm
        done = (step - warm) / max(1, steps - warm)
        return self.load.peak_rate * (0.55 + 0.45 * math.cos(math.pi * done))

    def rest(self, steps: float = 1) -> None:
        time.sleep(max(0.0, steps * self.options.step_time * self.options.time_scale))

    def say(self, text: str) -> None:
        seconds = int(self.step * self.options.step_time)  # simulated: it does not depend on this machine's speed
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        print(f"{DIM}{clock}{END} {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _on_terminate)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    run = TrainingRun(_options(arguments))

    def save_soon(*_: object) -> None:
        run.must_save = True

    signal.signal(signal.SIGUSR1, save_soon)
    try:
        return train(run)
    except Stopped:
        run.say(f"{YELLOW}WARN{END}  SIGTERM received at step {run.step}, saving before exit")
        run.say(f"{GREEN}SAVE{END}  checkpoint saved: {checkpoint(run)}")
        return 128 + signal.SIGTERM


def output(arguments: Iterable[str], gpus: Sequence[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        train(TrainingRun(_options([*arguments, "--time-scale=0"]), gpus))
    return printed.getvalue()


def train(run: TrainingRun) -> int:
    fails = run.options.fail_at is not None and attempt() <= run.options.fail_attempts
    load, gpus = run.load, run.uuids
    run.say(f"{CYAN}INFO{END}  {BOLD}{run.options.name}{END}: {load.what}, {load.parameters} parameters, bf16")
    for rank, uuid in enumerate(gpus):
        run.say(f"{CYAN}INFO{END}  rank {rank}/{len(gpus)} on {uuid}")
    if not gpus:
        run.say(f"{YELLOW}WARN{END}  CUDA_VISIBLE_DEVICES names no GPU, running on the CPU")
    if start := resumed_at(run):
        run.say(f"{CYAN}INFO{END}  resumed from checkpoint of step {start} (attempt {attempt()})")
    shards = run.dice.randrange(64, 512)
    run.say(
        f"{CYAN}INFO{END}  {shards} data shards, {run.dice.randrange(2, 9)} workers per rank, seed {run.options.seed}"
    )
    for step in range(resumed_at(run) + 1, run.options.steps + 1):
        run.step = step
        run.rest()
        loss = run.loss(run.step)
        if fails and run.step >= run.options.fail_at:
            fall_over(run)
            return int(run.options.exit_code)
        report(run, loss)
        if run.must_save:
            run.must_save = False
            run.say(f"{YELLOW}WARN{END}  SIGUSR1 received, saving at step {run.step}")
            run.say(f"{GREEN}SAVE{END}  checkpoint saved: {checkpoint(run)}")
    run.say(f"{BOLD}{GREEN}DONE{END}  {run.options.steps} steps, best eval loss {run.best:.4f}")
    return 0


def report(run: TrainingRun, loss: float) -> None:
    step, steps = run.step, run.options.steps
    if step % run.options.log_every == 0 or step == steps:
        left = int((steps - step) * run.options.step_time)
        scale = run.gpus * math.pow(0.97, math.log2(run.gpus))  # communication costs a few per cent of each GPU
        figures = (
            f"loss {BOLD}{loss:.4f}{END}",
            f"lr {run.learning_rate(step):.2e}",
            f"grad {abs(run.dice.gauss(0.9, 0.25)):.2f}",
            f"{run.load.rate * scale * run.dice.gauss(1, 0.015):,.0f} {run.load.unit}",
            f"{run.load.memory + run.dice.uniform(-0.4, 0.4):.1f} GiB",
            f"eta {left // 60}m{left % 60:02}s",
        )
        run.say(f"step {step:>{len(str(steps))}}/{steps}  " + f" {DIM}|{END} ".join(figures))
    if run.dice.random() < 0.012:
        run.say(f"{YELLOW}WARN{END}  {run.dice.choice(_WARNINGS)}")
    if step % max(1, steps // 8) == 0:
        evaluate(run)
        run.say(f"{GREEN}SAVE{END}  {checkpoint(run)}")


def evaluate(run: TrainingRun) -> None:
    for tenths in range(0, 11, 2):
        bar = "█" * tenths + "░" * (10 - tenths)
        print(f"\r  eval {tenths * 10:3}%|{bar}| {tenths * 5}/50", end="", flush=True)
        run.rest(0.3)
    print(flush=True)
    loss = run.loss(run.step) * 1.04
    better, run.best = loss < run.best, min(loss, run.best)
    mark = f"{GREEN}new best{END}" if better else f"best {run.best:.4f}"
    run.say(f"{CYAN}EVAL{END}  step {run.step}: loss {loss:.4f}, {mark}")


def checkpoint(run: TrainingRun) -> str:
    return f"checkpoints/{run.options.name}/step-{run.step:06}.pt"


_WARNINGS = (
    "gradient norm 11.2 clipped to 1.0",
    "data loader waited 412 ms for the next batch",
    "loss scale reduced to 32768",
    "tokenizer: sequence of 9 114 tokens cut to 8 192",
    "NCCL: slow all-reduce, 38 ms on the last bucket",
)


def fall_over(run: TrainingRun) -> None:
    total, left = 79.11, run.dice.uniform(0.2, 1.1)
    asked = f"Tried to allocate {run.dice.choice(('1.50', '2.50', '3.91'))} GiB"
    held = f"GPU 0 has {total} GiB in all and {left:.2f} GiB free, this process holds {total - left:.2f} GiB"
    lines = (
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 214, in <module>',
        "    main()",
        f'  File "/workspace/train.py", line 188, in main  # step {run.step}',
        "    loss = model(batch.tokens, labels=batch.labels).loss",
        '  File "/workspace/model.py", line 97, in forward',
        "    scores = torch.matmul(query, key.transpose(-2, -1)) / self.scale",
        f"{RED}torch.OutOfMemoryError: CUDA out of memory. {asked}; {held}.{END}",
    )
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def attempt() -> int:
    """Return the number of the attempt, from `<store>:<job>:<attempt>` in GPUTUI_ATTEMPT; 1 when it is not set."""
    number = os.environ.get("GPUTUI_ATTEMPT", "").rpartition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 1


def resumed_at(run: TrainingRun) -> int:
    if attempt() == 1 or run.options.fail_at is None:
        return 0
    every = max(1, run.options.steps // 8)
    return int((run.options.fail_at - 1) // every * every)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gputui.cli.trainer", description="A simulated training run.")
    parser.add_argument("--name", default="llm-pretrain", help="name of the run; decides which kind of training it is")
    parser.add_argument("--steps", type=_above_zero, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-time", type=float, default=0.5, help="seconds that a step reports")
    parser.add_argument("--time-scale", type=float, default=1.0, help="times as long as it really takes; 0: none")
    parser.add_argument("--log-every", type=_above_zero, default=5, help="steps between two lines")
    parser.add_argument("--fail-at", type=_above_zero, help="step at which it runs out of memory")
    parser.add_argument("--fail-attempts", type=int, default=10**6, help="attempts that fail; later ones succeed")
    parser.add_argument("--exit-code", type=int, default=1, help="of a failure")
    return parser.parse_args(arguments)


def _above_zero(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _on_terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the saving
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
