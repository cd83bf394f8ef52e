"""The files that a public forge and pre-commit read agree with pyproject.toml and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

TREE = Path(__file__).parents[2]
FORGE = TREE / ".github"
if not FORGE.exists():
    pytest.skip("this copy of the tree has no .github", allow_module_level=True)
yaml = pytest.importorskip("yaml")

PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def load(path: Path) -> Any:
    # YAML 1.1 reads the key `on` as true.
    return yaml.safe_load(path.read_text())


def classified_pythons() -> list[str]:
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in PROJECT["project"]["classifiers"]
    )
    return [match[1] for match in found if match]


def jobs(workflow: Path) -> list[tuple[str, dict[str, Any]]]:
    return list(load(workflow)["jobs"].items())


def test_the_required_python_is_the_first_classified_one() -> None:
    assert PROJECT["project"]["requires-python"] == f">={classified_pythons()[0]}"


def test_ci_runs_make_test_with_each_classified_python() -> None:
    job = load(FORGE / "workflows" / "test.yml")["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == classified_pythons()
    assert matrix["experimental"] == [False]
    assert any(step.get("run", "").startswith("make test ") for step in job["steps"])


def test_only_unclassified_pythons_may_fail() -> None:
    matrix = load(FORGE / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert {one["python"] for one in matrix["include"] if one["experimental"]}.isdisjoint(classified_pythons())


def test_wheels_are_built_for_each_classified_python() -> None:
    wanted = [f"cp{python.replace('.', '')}-*" for python in classified_pythons()]
    assert PROJECT["tool"]["cibuildwheel"]["build"] == wanted


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_reads_only_and_ends(workflow: Path) -> None:
    assert load(workflow)["permissions"] == {"contents": "read"}
    assert load(workflow)["concurrency"]["group"]
    for name, job in jobs(workflow):
        assert job["timeout-minutes"] <= 90, name
        assert set(job.get("needs", [])) <= set(load(workflow)["jobs"]), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_major_version(workflow: Path) -> None:
    used = [step["uses"] for _, job in jobs(workflow) for step in job["steps"] if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@(release/)?v\d+", one)] == []


def test_only_a_tag_is_published_and_only_that_job_gets_a_token() -> None:
    workflow = FORGE / "workflows" / "wheels.yml"
    asking = [(name, job) for name, job in jobs(workflow) if "permissions" in job]
    assert [name for name, _ in asking] == ["publish"]
    assert asking[0][1]["permissions"] == {"id-token": "write"}
    assert asking[0][1]["if"] == "startsWith(github.ref, 'refs/tags/v')"


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_complete(form: Path) -> None:
    loaded = load(form)
    assert loaded["name"]
    assert loaded["description"]
    ids = [field["id"] for field in loaded["body"]]
    assert len(ids) == len(set(ids)) > 0
    for field in loaded["body"]:
        assert field["type"] in {"textarea", "input", "dropdown"}
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or field["attributes"]["options"]


def test_pre_commit_formats_with_the_ruff_of_make_lint() -> None:
    pinned = [one for one in PROJECT["project"]["optional-dependencies"]["test"] if one.startswith("ruff")]
    repos = load(TREE / ".pre-commit-config.yaml")["repos"]
    [ruff] = [repo for repo in repos if repo["repo"].endswith("/ruff-pre-commit")]
    assert pinned == [f"ruff=={ruff['rev'].removeprefix('v')}"]
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]


def test_pre_commit_leaves_the_fuzzing_corpus_alone() -> None:
    hooks = {hook["id"]: hook for repo in load(TREE / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    excluded = re.compile(hooks["end-of-file-fixer"]["exclude"])
    corpus = [path.relative_to(TREE) for path in (TREE / "tests" / "fuzz" / "corpus").iterdir()]
    assert corpus
    assert all(excluded.search(PurePosixPath(path).as_posix()) for path in corpus)


def test_every_link_to_the_project_has_one_host() -> None:
    source = PROJECT["project"]["urls"]["Source"]
    assert all(url.startswith(source) for url in PROJECT["project"]["urls"].values())
    for path in [*FORGE.rglob("*.md"), *FORGE.rglob("*.yml")]:
        links = re.findall(r"https://github\.com/\S*?omq[^\s)]*", path.read_text())
        assert [link for link in links if not link.startswith(f"{source}/")] == [], path


@pytest.mark.parametrize("branch", ["blob/main", "tree/main"])
def test_links_to_files_of_the_project_lead_somewhere(branch: str) -> None:
    texts = [path.read_text() for path in [TREE / "pyproject.toml", *FORGE.rglob("*.md"), *FORGE.rglob("*.yml")]]
    prefix = f"{PROJECT['project']['urls']['Source']}/{branch}/"
    files = [match for text in texts for match in re.findall(re.escape(prefix) + r"([\w./-]*\w)", text)]
    assert files
    assert [file for file in files if not (TREE / file).exists()] == []
