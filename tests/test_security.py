"""What the code must not do, found in its syntax: unpickle, evaluate, start shells, write users' IDs into logs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtserve_backend

ROOT = Path(mtserve_backend.__file__).parent.parent
SHIPPED = ("mtserve_backend", "client/mtserve_client", "model_repository", "perf", "deploy")
LOGGERS = {"log", "logger", "logging"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# Names behind which a user's ID may stand.
OF_A_USER = {
    "user",
    "users",
    "user_id",
    "user_digest",
    "request",
    "visit",
    "record",
    "correlation_id",
    "call",
    "ticket",
}


def files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def faults(source: str) -> Iterator[str]:
    """What of the forbidden a source does, with its line."""
    for node in ast.walk(ast.parse(source)):
        for name in _imported(node):
            if name.split(".")[0] in UNPICKLERS:
                yield f"line {node.lineno}: imports {name}"  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in ("eval", "exec", "os.system", "os.popen", "yaml.load", "torch.load"):
            yield f"line {node.lineno}: calls {called}"
        if called in ("np.load", "numpy.load", "np.save", "numpy.save") and options.get("allow_pickle") != "False":
            yield f"line {node.lineno}: {called} without allow_pickle=False"
        if options.get("shell", "False") != "False":
            yield f"line {node.lineno}: {called} through a shell"


def logged_users(source: str) -> Iterator[str]:
    """Log calls that name what may hold a user's ID."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        if ast.unparse(node.func.value).split(".")[-1] not in LOGGERS:
            continue
        for argument in (*node.args, *(word.value for word in node.keywords)):
            for part in ast.walk(argument):
                name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
                if name in OF_A_USER:
                    yield f"line {node.lineno}: logs {name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("folder", SHIPPED)
def test_nothing_is_unpickled_evaluated_or_given_to_a_shell(folder: str) -> None:
    found = {str(path.relative_to(ROOT)): list(faults(path.read_text())) for path in files(folder)}
    assert {path: said for path, said in found.items() if said} == {}


def test_no_log_line_names_a_user() -> None:
    found = {
        str(path.relative_to(ROOT)): list(logged_users(path.read_text()))
        for path in files("mtserve_backend", "client/mtserve_client")
    }
    assert {path: said for path, said in found.items() if said} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(words, shell=True)",
    ],
)
def test_each_of_them_would_be_found(source: str) -> None:
    assert len(list(faults(source))) == 1


@pytest.mark.parametrize(
    "source", ['log.info("%s", user)', 'self.log.error(f"{request.user}")', "logging.warning(visit)"]
)
def test_a_logged_user_would_be_found(source: str) -> None:
    assert list(logged_users(source))
