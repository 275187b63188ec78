"""One page's experiment in the worker: gauges at once, training in pieces, the rest when idle.

A session never does more than one bounded piece of work per call, so that several pages share the
worker and a pause is heard between pieces.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import InputError
from shoal.lab import engine
from shoal.lab.probes import probe_names, sentence
from shoal.live import advice, gauges, inside
from shoal.live.controls import controls
from shoal.live.desk import Asked, ask
from shoal.live.state import State, command, script
from shoal.runtime import numpy_tree
from shoal.trees import size

Tell = Callable[..., None]
"""``tell(kind, **payload)`` sends a message to the page."""
Job = Callable[[], Any]
"""A piece of work for when nothing else is asked; one that returns True is not done yet."""


class Session:
    """What a page looks at: a setup, its gauges, and a run under way."""

    def __init__(self, own: str, tell: Tell) -> None:
        self.own, self.tell = own, tell
        self.asked: Asked | None = None
        self.run: engine.Underway | None = None
        self.at = self.goal = self.number = 0
        self.pieces: list[gauges.Records] = []
        self.changes: list[tuple[int, float]] = []
        self.seconds, self.first_piece = 0.0, 0
        self.pace, self.due = 0.0, 0.0  # Seconds between pieces, if a slow run was asked for.
        self.sample = 0
        # by name, so that what is asked for twice is done once: before training, and after it
        self.soon: dict[str, Job] = {}
        self.jobs: dict[str, Job] = {}

    # ------------------------------------------------------------------------------ what is asked

    def look(self, state: State, *, reset: bool, number: int) -> None:
        """Take over a state: gauges now, everything else when idle."""
        begun = time.perf_counter()
        before, again = self.asked, self.at
        asked = ask(state, self.own)
        kept = before is not None and not reset and self._same(before, asked)
        self.asked = asked
        if kept and self.run is not None:
            found = self._judged()
        else:
            # other probes, or another theorem: the same run once more, with its new records
            rerun = before is not None and not reset and self._same_curve(before, asked)
            self._reset(asked, again if rerun else 0)
            found = gauges.judged(asked, gauges.at_start(asked))
        took = 1000 * (time.perf_counter() - begun)
        self.tell("gauges", **found, number=number, milliseconds=round(took, 2))
        self.status()
        self.soon = {
            "step": self._tell_step, "controls": self._tell_controls, "texts": self._tell_texts,
            "statement": self._tell_statement,
        }  # fmt: skip
        self.jobs = {
            "edge": self._tell_edge,
            "prediction": self._tell_prediction, "spectrum": self._tell_spectrum,
            "attention": self._tell_attention, "advice": self._advice(),
        }  # fmt: skip

    def _same_curve(self, before: Asked, now: Asked) -> bool:
        """Whether the run under way passes the numbers of the one that is asked for."""
        return (
            before.state.same_run(now.state)
            and before.setup.setting.method == now.setup.setting.method
            and before.step_size == now.step_size
            and tuple(self.changes) == now.state.changes
        )

    def _same(self, before: Asked, now: Asked) -> bool:
        """Whether it also has the records that are asked for."""
        recorded = before.probes == now.probes and before.state.theorem == now.state.theorem
        return recorded and self._same_curve(before, now)

    def _reset(self, asked: Asked, goal: int) -> None:
        self.run, self.at, self.goal = None, 0, min(goal, asked.total)
        self.pieces, self.seconds, self.first_piece = [], 0.0, 0
        self.changes = list(asked.state.changes)
        self.number += 1
        setting, weights = asked.setup.setting, size(asked.setup.params0)
        self.tell(
            "run", run=self.number, total=asked.total, every=setting.every, method=setting.method,
            weights=weights,
        )  # fmt: skip

    def go(self, goal: int, pace: float) -> None:
        """Train up to a step."""
        if self.asked is None:
            return
        every = self.asked.setup.setting.every
        self.goal = min(-(-goal // every) * every, self.asked.total)
        self.pace = pace
        self.status()

    def pause(self) -> None:
        """Stay where the run is."""
        self.goal = self.at
        if self.run is not None and not self._finished():
            self.jobs |= self._after_run()
        self.status()

    def change_step(self, step_size: float) -> None:
        """Continue with another step size."""
        if self.run is None or self._finished():
            raise InputError("the step size is changed on the way only while a run is under way.")
        self.changes = [c for c in self.changes if c[0] < self.at] + [(self.at, step_size)]
        self._use_step(step_size)
        self._tell_step()
        self._tell_texts()
        self.status()

    def _use_step(self, step_size: float) -> None:
        assert self.run is not None
        changed = self.run.setup.replace(step_size=np.full(1, step_size))
        self.run = self.run._replace(setup=changed)

    def look_inside(self, sample: int) -> None:
        """Show the attention of another sample."""
        self.sample = sample
        if self.asked is not None:
            self._tell_attention()

    # ----------------------------------------------------------------------------------- training

    def busy(self) -> bool:
        """Whether steps are to be taken."""
        return self.asked is not None and self.at < self.goal

    def work(self, *, quiet: bool = True) -> bool:
        """One piece of work; False if there is none now.

        Unless it is ``quiet``, a slider may be moving: then only training goes on, so that the
        next gauges do not wait for what the next move makes obsolete.
        """
        if quiet and self.soon:
            self._work_on(self.soon)
        elif self.busy():
            if time.monotonic() < self.due:
                return False
            self._train()
        elif quiet and self.jobs:
            self._work_on(self.jobs)
        else:
            return False
        return True

    def _work_on(self, jobs: dict[str, Job]) -> None:
        # what a run changed comes first, advice last
        name = min(jobs, key=lambda job: (job != "verdict", job == "advice"))
        job = jobs.pop(name)
        try:
            if job():
                jobs[name] = job
        except InputError as error:
            self.tell("note", text=str(error))

    def _stop(self) -> int:
        """Where the next piece must end at the latest: the goal, or a change of the step."""
        return min([self.goal, *(at for at, _ in self.changes if at > self.at)])

    def _train(self) -> None:
        asked = self.asked
        assert asked is not None
        every = asked.setup.setting.every
        if self.run is None:
            self.tell("busy", text="compiling the training step")
            self.run = engine.begin(asked.setup)
        for at, step_size in self.changes:
            if at == self.at:
                self._use_step(step_size)
        steps = every if self.pace else asked.piece(self.at, self._stop())
        begun = time.perf_counter()
        self.run, seen = engine.advance(self.run, steps, asked.probes)
        piece = {name: x[0] for name, x in seen.items()}
        self._keep(piece, self.at, every)
        self.at += steps
        if self._finished():
            self._keep(self._last(), self.at, every)
        took = time.perf_counter() - begun
        if self.first_piece:
            self.seconds += took
        else:  # it also compiled
            self.first_piece = self.at
        self.due = time.monotonic() + self.pace
        if not self.busy():
            self.jobs |= self._after_run()
        self.status()

    def _last(self) -> gauges.Records:
        """The record at the present weights."""
        assert self.asked is not None
        assert self.run is not None
        seen = engine.look(self.asked.setup, self.run.params, self.asked.probes)
        return numpy_tree(seen)

    def _keep(self, piece: gauges.Records, at: int, every: int) -> None:
        self.pieces.append(piece)
        steps = at + every * np.arange(len(piece["risk"]))
        self.tell("records", run=self.number, step=steps, curves=self._shown(piece))

    def _shown(self, piece: gauges.Records) -> gauges.Records:
        """The risk and the probes that the page draws; a theorem's own stay here."""
        assert self.asked is not None
        chosen = ["risk", *(name.partition("@")[0] for name in self.asked.state.probes)]
        return {
            name: x
            for name, x in piece.items()
            if x.ndim == 1 and any(name == c or name.startswith(f"{c}_") for c in chosen)
        }

    def _finished(self) -> bool:
        return self.asked is not None and self.run is not None and self.at >= self.asked.total

    def _records(self) -> gauges.Records:
        names = self.pieces[0]
        return {name: np.concatenate([piece[name] for piece in self.pieces]) for name in names}

    # ------------------------------------------------------------------------------ what is told

    def status(self) -> None:
        """Where the run is."""
        asked = self.asked
        if asked is None:
            return
        taken = self.at - self.first_piece
        rate = taken / self.seconds if self.seconds > 0 and taken > 0 else None
        diverged = bool(self.pieces) and not np.isfinite(self.pieces[-1]["risk"]).all()
        self.tell(
            "status", run=self.number, at=self.at, total=asked.total, playing=self.busy(),
            finished=self._finished(), rate=rate, changes=self.changes, diverged=diverged,
        )  # fmt: skip

    def _tell_step(self) -> None:
        assert self.asked is not None
        now = self.asked.step_size
        if self.run is not None and self.run.setup.step_size is not None:
            now = float(self.run.setup.step_size[0])
        self.tell(
            "step", now=now, largest=gauges.largest(self.asked), usual=gauges.usual(self.asked)
        )

    def _tell_texts(self) -> None:
        """The command and the script that repeat this."""
        asked = self.asked
        assert asked is not None
        from shoal.live.desk import data_file

        data = str(data_file(asked.state.data)) if asked.state.data else ""
        state = asked.state._replace(changes=tuple(self.changes))
        every = asked.setup.setting.every
        how = asked.step_size, asked.probes, data
        line = "" if self.changes else command(state, *how)
        self.tell("texts", command=line, python=script(state, *how, asked.total, every))

    def _after_run(self) -> dict[str, Job]:
        return {
            "verdict": self._tell_verdict, "spectrum": self._tell_spectrum,
            "attention": self._tell_attention,
        }  # fmt: skip

    def _judged(self) -> dict[str, Any]:
        """The theorem compared with the run so far, or with the whole run."""
        asked = self.asked
        assert asked is not None
        assert self.run is not None
        done = self._finished() and not self.changes
        average = engine.average_of(self.run)
        found = gauges.judged(asked, self._records(), finished=done, average=average)
        if self.changes:
            at, _ = self.changes[-1]
            words = f"The step size was changed at step {at}; theorems are about a constant step."
            found |= {"verdict": "not applicable", "words": words, "curves": {}}
        return found

    def _tell_verdict(self) -> None:
        self.tell("gauges", **self._judged(), number=None, milliseconds=None)
        self.status()

    def _tell_controls(self) -> None:
        asked = self.asked
        assert asked is not None
        setting = asked.setup.setting
        names = probe_names(asked.setup)
        self.tell(
            "controls", target=asked.state.target, controls=controls(asked.source, setting),
            theorems=gauges.theorems_of(asked), theorem=asked.state.theorem,
            probes=[{"name": n, "sentence": sentence(asked.setup, n)} for n in names],
            recorded=asked.probes, num_samples=setting.num_samples,
            uncovered=asked.uncovered, drops=hasattr(asked.source, "setting"),
        )  # fmt: skip

    def _tell_statement(self) -> None:
        assert self.asked is not None
        self.tell("statement", **gauges.statement(self.asked))

    def _tell_edge(self) -> None:
        assert self.asked is not None
        self.tell("edge", edge=gauges.edge(self.asked))

    def _tell_prediction(self) -> None:
        assert self.asked is not None
        self.tell("prediction", run=self.number, curve=gauges.prediction(self.asked))

    def _tell_spectrum(self) -> None:
        assert self.asked is not None
        setup = self.asked.setup
        start = inside.spectrum(setup, setup.params0)
        now = None if self.run is None or start is None else inside.spectrum(setup, self.run.params)
        self.tell("spectrum", start=start, now=now, at=self.at)

    def _tell_attention(self) -> None:
        assert self.asked is not None
        setup = self.asked.setup
        start = inside.attention(setup, setup.params0, self.sample)
        now = None if self.run is None else inside.attention(setup, self.run.params, self.sample)
        self.tell("attention", sample=self.sample, start=start, now=now, at=self.at)

    def _advice(self) -> Job:
        """A job that tries one change per turn, and tells what helped when all are tried."""
        asked = self.asked
        assert asked is not None
        turns, found, tried = advice.trials(asked, self.own), list[dict[str, Any]](), False

        def one() -> bool:
            nonlocal tried
            for change in turns:
                tried = True
                if change is not None:
                    found.append(change)
                return True
            order = sorted(found, key=lambda change: not change["whole"])
            self.tell("advice", changes=order[:4], hints=advice.hints(asked) if tried else [])
            return False

        return one
