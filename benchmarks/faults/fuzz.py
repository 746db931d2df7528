"""Fuzz: a million inputs that nobody would write, to everything that reads what others wrote. Does any of it crash?

python -m benchmarks.faults.fuzz [--inputs N] [--target NAME ...] [--json]

An input is a sound one that was changed: bits, bytes, spans, numbers, words of the format, pieces of another. Where
the input is a structure, hypothesis makes it. Read or refused is right; a crash is any other exception, the end of the
process, or ten seconds without an answer. Chunks of inputs run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from tqdm import tqdm

from benchmarks.common import RESULTS, save, show
from benchmarks.faults.targets import TARGETS, Target
from localmem.errors import LocalmemError

_CHUNK = 5_000
_LONGEST_S = 10
_CHANGES_MADE = (1, 1, 1, 1, 2, 3, 6)  # of an input: the more, the sooner it is refused for the first of them
_LARGEST_BYTES = 200_000
_NUMBERS = (
    0,
    1,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_KEPT = 20  # crashes told of one target


@dataclass(slots=True)
class Fuzzed:
    """What came of some inputs to one target."""

    target: str
    inputs: int = 0
    refused: int = 0
    crashed: int = 0
    crashes: list[str] = field(default_factory=list[str])
    """The first of them, with their inputs."""


Job = tuple[str, int, int]
"""A target's name, the number of a chunk of its inputs, and how many they are."""

Work = Callable[[str, int, int], Fuzzed]
"""Does a job."""


class _Hang(BaseException):
    """No answer in time: nothing that handles errors may take it for one."""


def fuzz(
    inputs: int,
    names: Sequence[str] = (),
    *,
    start: int = 0,
    processes: int = 2,
    quiet: bool = True,
    work: Work | None = None,
) -> list[Fuzzed]:
    """Give that many inputs to the targets, each its share. `start` makes other inputs; `work` does a chunk of them."""
    targets = [target for target in TARGETS if not names or target.name in names]
    whole = sum(target.share for target in targets)
    jobs = [
        (target.name, number, min(_CHUNK, count - done))
        for target in targets
        for count in [max(1, round(inputs * target.share / whole))]
        for number, done in enumerate(range(0, count, _CHUNK), start)
    ]
    found = {target.name: Fuzzed(target.name) for target in targets}
    with tqdm(total=sum(count for *_, count in jobs), desc="fuzz", unit="input", disable=quiet) as bar:

        def do(jobs: Sequence[Job], processes: int) -> list[Job]:
            """Those that were not done, because a process ended."""
            left: list[Job] = []
            for job, part in _in_processes(jobs, processes, work or fuzz_chunk):
                if part is None:
                    left.append(job)
                else:
                    _add(found[job[0]], part)
                    bar.update(job[2])
            return left

        for job in do(jobs, processes):  # each by itself, to see which it was
            for name, number, count in do([job], 1):
                _add(found[name], Fuzzed(name, count, crashed=1, crashes=[f"the process ended in chunk {number}"]))
    return list(found.values())


def _in_processes(jobs: Sequence[Job], processes: int, work: Work) -> Iterator[tuple[Job, Fuzzed | None]]:
    """Each job with what came of it as it is done; None where a process ended, which takes the others' jobs along."""
    context = multiprocessing.get_context("spawn")  # a fork would hand on the state of what was fuzzed before
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(work, *job): job for job in jobs}
        for future in as_completed(running):
            try:
                yield running[future], future.result()
            except BrokenProcessPool:
                yield running[future], None


def _add(whole: Fuzzed, part: Fuzzed) -> None:
    whole.inputs += part.inputs
    whole.refused += part.refused
    whole.crashed += part.crashed
    whole.crashes = [*whole.crashes, *part.crashes][:_KEPT]


def fuzz_chunk(name: str, number: int, count: int) -> Fuzzed:
    """Inputs of one target; the same for the same number."""
    (target,) = (target for target in TARGETS if target.name == name)
    found = Fuzzed(name)
    with tempfile.TemporaryDirectory() as folder, target.opened(Path(folder)) as run:
        if target.strategy is None:
            chance = random.Random(f"{name} {number}")
            for _ in range(count):
                _give(run, mutated(target, chance), found)
        else:
            _let_hypothesis_make(target, run, number, count, found)
    return found


def _let_hypothesis_make(target: Target, run: Callable[[bytes], None], number: int, count: int, found: Fuzzed) -> None:
    limits = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    assert target.strategy is not None

    @seed(number)
    @limits
    @given(target.strategy)
    def give(data: bytes) -> None:
        _give(run, data, found)

    give()


def _give(run: Callable[[bytes], None], data: bytes, found: Fuzzed) -> None:
    found.inputs += 1
    try:
        with _in_time():
            run(data)
    except LocalmemError:
        found.refused += 1
    except (Exception, _Hang):  # noqa: BLE001  # whatever it is, it is what is looked for
        found.crashed += 1
        if len(found.crashes) < _KEPT:
            found.crashes.append(f"{data[:2_000]!r}: {traceback.format_exc(limit=-4)}")


@contextmanager
def _in_time() -> Generator[None]:
    def hang(*_: object) -> None:
        raise _Hang(f"no answer in {_LONGEST_S} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def mutated(target: Target, chance: random.Random) -> bytes:
    """A sound input, changed in a few places."""
    data = bytearray(chance.choice(target.seeds))
    for _ in range(chance.choice(_CHANGES_MADE)):
        _CHANGES[chance.randrange(len(_CHANGES))](data, target, chance)
    return bytes(data[:_LARGEST_BYTES])


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _span(data: bytearray, chance: random.Random) -> slice:
    start = _place(data, chance)
    return slice(start, start + int(chance.expovariate(1 / 12)))


def _flip(data: bytearray, _: Target, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _insert(data: bytearray, _: Target, chance: random.Random) -> None:
    place = _place(data, chance)
    data[place:place] = chance.randbytes(chance.randint(1, 9))


def _delete(data: bytearray, _: Target, chance: random.Random) -> None:
    del data[_span(data, chance)]


def _repeat(data: bytearray, _: Target, chance: random.Random) -> None:
    span = _span(data, chance)
    data[span] = data[span] * chance.choice((2, 2, 3, 50, 1_000))


def _cut(data: bytearray, _: Target, chance: random.Random) -> None:
    if chance.random() < 0.2:
        del data[_place(data, chance) :]


def _number(data: bytearray, _: Target, chance: random.Random) -> None:
    place, length = _place(data, chance), chance.choice((1, 2, 4, 8))
    data[place : place + length] = (chance.choice(_NUMBERS) & ((1 << 8 * length) - 1)).to_bytes(length, "little")


def _word(data: bytearray, target: Target, chance: random.Random) -> None:
    span = _span(data, chance)
    data[span if chance.random() < 0.5 else slice(span.start, span.start)] = chance.choice(target.words)


def _cross(data: bytearray, target: Target, chance: random.Random) -> None:
    other = chance.choice(target.seeds)
    place = chance.randrange(len(other) + 1)
    data[_span(data, chance)] = other[place : place + int(chance.expovariate(1 / 40))]


_CHANGES: tuple[Callable[[bytearray, Target, random.Random], None], ...] = (
    *(_flip, _insert, _delete, _repeat, _cut, _number, _word, _word, _cross),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.faults.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--target", action="append", default=[], choices=[target.name for target in TARGETS])
    parser.add_argument("--start", type=int, default=0, metavar="N", help="other inputs than those of another N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the result file goes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    arguments = parser.parse_args()
    found = fuzz(
        arguments.inputs,
        arguments.target,
        start=arguments.start,
        processes=arguments.processes,
        quiet=arguments.json,
    )
    crashes = {one.target: one.crashes for one in found if one.crashes}
    figures: dict[str, object] = {
        "fuzz_inputs": sum(one.inputs for one in found),
        "fuzz_crashes": sum(one.crashed for one in found),
        **{f"fuzz_{one.target}_inputs": one.inputs for one in found},
        **{f"fuzz_{one.target}_refused": one.refused for one in found},
    }
    save("faults", "fuzz", figures, folder=arguments.out, start=arguments.start, crashes=crashes)
    show(figures, as_json=arguments.json)
    if not arguments.json:
        for name, told in crashes.items():
            print(f"\n{name}: {json.dumps(told[0])}")


if __name__ == "__main__":
    main()
