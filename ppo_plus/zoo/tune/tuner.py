"""The processes of a study: workers, which do jobs, and the tuner, which starts and watches them, and reports."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from ppo_plus.require import is_disk_full
from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment, Supervision
from ppo_plus.zoo.installation import import_packages
from ppo_plus.zoo.interrupts import check, deferred, exit_codes
from ppo_plus.zoo.tune.jobs import CANDIDATE, SEED, STORAGE_ERRORS, Jobs, StorageError, named_errors
from ppo_plus.zoo.tune.report import TuningVerdict, done_runs, estimate, write_report
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.study import BASELINE, ERROR, RECORDED, SCORES, Study, create, is_over, read_task, stages
from ppo_plus.zoo.tune.task import PRUNERS, Diverged, Plan, TuningTask, score

#: Seconds that an interrupted worker has to put its job back.
END_PATIENCE = 60
#: Seconds to wait when no job is free.
POLL = 1.0


class StudyStopped(Exception):
    """A run raised an error that its hyperparameters did not cause."""


class WorkersDied(Exception):
    """No worker is left, and the study is not finished."""


#: Exit codes of a process that works on a study.
EXIT_CODES: dict[type[Exception], int] = {StudyStopped: 1, WorkersDied: 1, StorageError: 2}


@dataclass(frozen=True)
class TuningWorker:
    """One process's part in a study. ``supervision``: ``restarts`` of each run and ``timeout`` of environments."""

    study: Study
    task: TuningTask
    supervision: Supervision = field(default_factory=Supervision)

    def work(self) -> None:
        """Do jobs until the study is finished. An error that its hyperparameters did not cause stops the study."""
        with named_errors():
            for jobs in stages(self.study, self.task):
                self._do_all(jobs)

    def _do_all(self, jobs: Jobs) -> None:
        while not jobs.all_done():
            check()
            self._check()
            claimed = jobs.claim()
            if claimed is None:
                time.sleep(POLL)  # others still work, and one of them may die
            else:
                self._do(jobs, claimed)

    def _do(self, jobs: Jobs, claimed: FrozenTrial) -> None:
        try:
            with self.study.heartbeats.of(self.study.storage, claimed._trial_id):
                run = self._repeat if CANDIDATE in claimed.user_attrs else self._search
                jobs.finish(claimed, TrialState.COMPLETE, run(jobs, claimed))
        except optuna.TrialPruned:
            jobs.finish(claimed, TrialState.PRUNED)
        except Diverged as error:
            jobs.finish(claimed, TrialState.FAIL, reason=str(error))
        except UpdateFinishedTrialError:
            return  # this worker was silent for so long that it counted as dead: another one has the job
        except (KeyboardInterrupt, StudyStopped):
            jobs.finish(claimed, TrialState.FAIL, interrupted=True)
            raise
        except (*STORAGE_ERRORS, StorageError):
            raise  # the job cannot be put back now, but without heartbeats it is soon free again
        except Exception as error:
            if not is_disk_full(error):
                self.study.set(ERROR, traceback.format_exc())
            jobs.finish(claimed, TrialState.FAIL, interrupted=True)
            raise

    def _search(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """The mean score of what the sampler suggests, on the seeds of the screening."""
        plan = self.task.plan
        trial = jobs.trial(claimed, sampler=plan.make_sampler(claimed.number), pruner=PRUNERS[plan.pruner](plan))
        settings = self.task.search_space().sample(trial)
        baseline = claimed.user_attrs.get(BASELINE)
        experiment = self.task.baselines()[baseline] if baseline else self.task.candidate(settings)
        recorded = experiment.replace(n_timesteps=plan.n_timesteps).settings()
        trial.set_user_attr(RECORDED, recorded)
        scores = [self._score(trial, recorded, seed, i) for i, seed in enumerate(plan.seeds("screening"))]
        trial.set_user_attr(SCORES, scores)
        return fmean(scores)

    def _repeat(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A run of a screening trial's settings with another seed."""
        trial, run = jobs.trial(claimed, pruner=optuna.pruners.NopPruner()), claimed.user_attrs
        return self._score(trial, run[RECORDED], run[SEED], 0)

    def _score(self, trial: Trial, settings: dict[str, Any], seed: int, n_before: int) -> float:
        """The score on one of the trial's seeds, the first of which are reported already."""
        plan = self.task.plan
        total = plan.n_seeds * plan.n_timesteps

        def report(timesteps: int, mean_return: float) -> None:
            step = n_before * plan.n_timesteps + timesteps
            self._check()
            trial.report(mean_return, step)
            if step < total and trial.should_prune():  # at the end pruning saves nothing
                raise optuna.TrialPruned

        return score(self.task.read(settings), plan, seed, report, **self.supervision)

    def _check(self) -> None:
        """:raises StudyStopped: another worker has stopped the study"""
        error = self.study.attributes().get(ERROR)
        if error:
            raise StudyStopped(f"\n{error}".strip().rpartition("\n")[2])


def run_worker() -> None:
    """The main function of a worker process. It reads its orders from standard input, which the tuner keeps open."""
    with exit_codes(EXIT_CODES):
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return  # the tuner was killed before it had written everything
        order = json.loads(line)
        threading.Thread(target=_end_with_tuner, daemon=True).start()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        import_packages(order["gym_packages"])
        study = Study.open(order["study"], order["url"], order["grace_period"])
        TuningWorker(study, read_task(study, order["packages"]), order["supervision"]).work()


def _end_with_tuner() -> None:
    """Interrupt this worker when its tuner is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True)
class Workers:
    """Worker processes to start."""

    n: int  # how many
    url: str  # URL of the study's storage
    supervision: Supervision = field(default_factory=Supervision)  # see `zoo.tune.tuner.TuningWorker`


def tune(
    experiment: Experiment,
    space: dict[str, Any] | None,
    study: Study,
    plan: Plan,
    max_total_trials: int,
    folder: str | Path = "logs/tune",
    workers: Workers | None = None,
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
    gym_packages: tuple[str, ...] = (),
) -> TuningVerdict:
    """Search for hyperparameters, confirm the best ones on unseen seeds, and export a winner. The same call again
    resumes the study; if it is finished, only the report is written.

    :param experiment: what is tuned; the default and its own settings are the baselines
    :param space: contents of a search-space file; ``None`` for the package's own
    :param max_total_trials: trials of the search, exactly; finished, pruned and failed ones count, each once
    :param folder: where the report goes
    :param workers: processes that do the work; ``None``: this process
    :param packages: what settings may import from; ``None``: from anywhere
    :param gym_packages: what you imported because it registers environments; part of the exported command
    :raises ValueError: an argument is wrong, or the study is about something else
    :raises StudyStopped: a run raised an error that its hyperparameters did not cause
    :raises WorkersDied: no worker is left, and the study is not finished
    :raises StorageError: the storage is unavailable; the same call resumes the study
    """
    space = read_space() if space is None else space
    task = TuningTask(experiment, space, plan, packages, gym_packages).checked()
    create(study, task, max_total_trials)
    return finish(study, task, Path(folder), workers)


def finish(study: Study, task: TuningTask, folder: Path, workers: Workers | None) -> TuningVerdict:
    """Finish a study and write its report."""
    with deferred([signal.SIGINT]), named_errors():
        if workers is None:
            TuningWorker(study, task).work()
        elif not is_over(study, task):
            supervise(study, task, workers)
        return write_report(study, task, folder)


def supervise(study: Study, task: TuningTask, workers: Workers) -> None:
    """Start worker processes, print a line for each finished run, and wait until all processes have ended."""
    processes: list[subprocess.Popen[str]] = []
    next(stages(study, task))  # prepares the screening, which several workers would do twice
    printed: set[Any] = set(done_runs(study))
    try:
        for _ in range(workers.n):
            _start(study, task, workers, processes)
        while True:
            all_ended = all(process.poll() is not None for process in processes)
            lines: dict[Any, str] = {}
            for process in processes:
                if (process.returncode or 0) < 0:  # one that ends with an exit code prints why
                    why = f"was killed by signal {-process.returncode}: its trial, if it had one, is run again"
                    lines[process] = f"worker process {process.pid} {why}"
            # Without the storage there is nothing to print; the workers decide whether they wait for it.
            with suppress(*STORAGE_ERRORS):
                lines |= done_runs(study)
                lines[len(study.begun_stages())] = estimate(study, task, workers.n)
            for key, line in lines.items():
                if line and key not in printed:
                    printed.add(key)
                    print(line, flush=True)
            if all_ended:
                break
            time.sleep(1)
            check()
    except BaseException:
        for process in processes:
            process.terminate()  # so that it puts its job back and ends
        raise
    finally:
        for process in processes:
            _end(process)
    if all(process.returncode for process in processes):
        error = study.attributes().get(ERROR)
        if error:
            raise StudyStopped(error)
        if {process.returncode for process in processes} == {errno.ENOSPC}:
            raise OSError(errno.ENOSPC, "the disk is full: run the same command to resume")
        codes = ", ".join(str(process.returncode) for process in processes)
        raise WorkersDied(f"every worker ended too early (exit codes {codes}): run the same command to resume")


def _start(study: Study, task: TuningTask, workers: Workers, processes: list[subprocess.Popen[str]]) -> None:
    """Start a worker and add it to the processes."""
    order: dict[str, Any] = {"study": study.name, "grace_period": study.heartbeats.grace_period, **vars(workers)}
    order |= {"packages": task.packages, "gym_packages": task.gym_packages}
    process = subprocess.Popen(
        [sys.executable, "-c", "from ppo_plus.zoo.tune.tuner import run_worker; run_worker()"],
        stdin=subprocess.PIPE,  # not arguments, which everyone on the machine can read: the URL may have a password
        stdout=subprocess.DEVNULL,  # progress and errors are in the study
        text=True,
        # Ctrl-C is the tuner's, which ends its workers; and the processes of environments can be killed with it.
        start_new_session=True,
    )
    processes.append(process)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, which `supervise` finds
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    """Wait for a process to end. One that hangs is killed, together with the processes of its environments."""
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        with suppress(AttributeError, ProcessLookupError):  # Windows has no groups of processes
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
