"""`wavelet`, `wavelet jobs` and `wavelet doctor`."""

import json
import subprocess
import sys

NAMES = ["char-lstm", "char-gpt", "digits-cnn", "digits-mobile", "mlp-small-ops"]


def test_jobs(wavelet, tmp_path):
    done = wavelet("jobs", "--json", "jobs.json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "jobs.json").read_text())
    assert document.keys() == {"schema_version", "command", "versions", "jobs"}
    assert (document["schema_version"], document["command"]) == (1, "jobs")
    assert [job["job"] for job in document["jobs"]] == NAMES
    for job in document["jobs"]:
        assert job.keys() == {"job", "what", "parameters", "samples_per_batch"}
        assert job["job"] in done.stdout
        assert job["parameters"] > 1000


def test_doctor(wavelet, tmp_path):
    done = wavelet("doctor", "--json", "doctor.json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "doctor.json").read_text())
    assert document.keys() == {"schema_version", "command", "machine", "versions", "checks"}
    assert {check["status"] for check in document["checks"]} <= {"good", "advice", "missing"}
    names = [check["name"] for check in document["checks"]]
    assert names[:3] == ["python", "torch", "wavelet"]
    assert {"cores", "denormals", "allocator", "compiler", "cuda", "distributed", "scikit-learn"} <= set(names)
    assert all(name in done.stdout for name in names)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_nothing_asked_shows_help(wavelet):
    done = wavelet()
    assert (done.returncode, done.stderr) == (0, "")
    assert all(command in done.stdout for command in ("jobs", "train", "bench", "doctor"))


def test_without_rich_the_command_line_names_the_extra():
    code = "import sys; sys.modules['rich'] = None; from wavelet.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "wavelet: the command line needs rich: pip install 'wavelet-train[cli]'\n"


def test_import_needs_torch_and_numpy_alone():
    code = "import sys, wavelet; print([n for n in ('rich', 'typer', 'sklearn', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
