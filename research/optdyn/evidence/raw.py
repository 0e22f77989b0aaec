"""The raw results of a study as one file: all trials and measurements of a workdir, as Parquet.

Whoever has the file makes pages and pictures again without training, or goes on with the study on
another machine. A row is a trial, or a measurement:

    config, target, clock, most   what a trial is of: `config` is JSON of the dotted keys that are
                                  not at their defaults, `most` how much it could take
    code                          checksums of the user's own code in it, if there is any
    updates, seconds, losses, met, status, test    its `Curve`
    key, value                    JSON: what a measurement is of, and what was measured

The file says what the defaults were when it was written. So its trials are found again by a later
version of the project, which has more keys, and lacks some.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from optdyn.base.files import WorkdirError, writing
from optdyn.base.files import line_of as told
from optdyn.base.trees import Json
from optdyn.evidence.study import (
    MEASURED,
    TRIALS,
    Job,
    Lines,
    curve_of,
    key_of,
    line_of,
    of_job,
    reaches,
)
from optdyn.experiment import ConfigError, read, to_json, usual, with_defaults

DEFAULTS = b"optdyn defaults"  # in the file's metadata
LEVEL = 19  # of zstd: a curve of 40 points takes about 240 bytes
TEXT, NUMBERS = pa.string(), pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        *((name, TEXT) for name in ("config", "code", "clock", "status", "test", "key", "value")),
        *((name, pa.float64()) for name in ("target", "most")),
        ("updates", pa.list_(pa.int64())),
        *((name, NUMBERS) for name in ("seconds", "losses", "met")),
    ]
)
AS_JSON = ("config", "test", "key", "value")


class Count(NamedTuple):
    trials: int
    measurements: int
    left_out: int = 0  # that set keys which there are no more

    def __str__(self) -> str:
        said = f"{self.trials} trials and {self.measurements} measurements"
        if self.left_out:
            said += f"; {self.left_out} trials are left out, of keys that there are no more"
        return said


def ship(workdir: Path, file: Path) -> Count:
    """Writes all that the workdir remembers. Raises `WorkdirError` or `DiskFull`."""
    if not any((workdir / name).exists() for name in (TRIALS, MEASURED)):
        raise WorkdirError(f"{workdir}: no trials there, and no measurements")
    if file.is_dir():
        raise WorkdirError(f"{file}: is a folder; name a file")
    if not file.parent.is_dir():
        raise WorkdirError(f"{file.parent}: no such folder")
    trials, measured = Lines(workdir / TRIALS).every(), Lines(workdir / MEASURED).every()
    trials.sort(key=lambda line: json.dumps([line["config"], line["target"]], sort_keys=True))
    rows = [_row(line) for line in (*trials, *measured)]
    metadata = {DEFAULTS: to_json(usual()).encode()}
    table = pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata))
    aside = file.with_name(f".{file.name}.part")
    with writing(file):
        try:
            pq.write_table(
                table, aside, compression="zstd", compression_level=LEVEL, use_dictionary=False
            )
            aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)
    return Count(len(trials), len(measured))


def unpack(file: Path, workdir: Path) -> Count:
    """Adds what a file has to what the workdir remembers, of each trial the longest.

    Raises `WorkdirError` where it is no such file; trials of keys that there are no more are left
    out.
    """
    if not file.is_file():
        raise WorkdirError(f"{file}: no such file")
    try:
        table = pq.read_table(file)
        defaults = json.loads(table.schema.metadata[DEFAULTS])
        base = read(with_defaults(_known(defaults, json.loads(to_json(usual())))), file)
        rows = [_line(row) for row in table.select(SCHEMA.names).to_pylist()]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise WorkdirError(f"{file}: no raw results of a study ({told(error)})") from error
    workdir.mkdir(parents=True, exist_ok=True)
    trials, measured = Lines(workdir / TRIALS), Lines(workdir / MEASURED)
    added, left_out = 0, 0
    for line in (row for row in rows if "config" in row):
        try:
            config = base.with_(line["config"], code=line.get("code", ""))
        except ConfigError:
            left_out += 1
            continue
        added += 1
        job = Job(config, line["target"], line["most"], line["clock"])
        held = trials.at(of_job(job))
        if not (held and reaches(held, job.most)):
            trials.put(of_job(job), line_of(job, curve_of(line)))
    others = [row for row in rows if "key" in row]
    for line in others:
        if not measured.at(name := key_of([line["key"]])):
            measured.put(name, line)
    return Count(added, len(others), left_out)


def _known(held: Any, usual: Any) -> Any:
    """What a config holds of the keys that there still are."""
    if not (isinstance(held, dict) and isinstance(usual, dict)):
        return held
    return {key: _known(value, usual[key]) for key, value in held.items() if key in usual}


def _row(line: Json) -> dict[str, Any]:
    return {name: json.dumps(v) if name in AS_JSON else v for name, v in line.items()}


def _line(row: dict[str, Any]) -> Json:
    return {
        name: json.loads(value) if name in AS_JSON else value
        for name, value in row.items()
        if value is not None
    }
