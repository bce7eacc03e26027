"""Cases of a job that runs many of them, of which one start runs those that were selected."""

import json

import mpi


def found(script, request, tmp_path_factory, ranks_and_name=lambda case: (4, case)) -> dict:
    """What was wrong in each of the cases that are the ``case`` of the tests of a file.

    Args:
        script: The job's name in ``jobs``. It reads the names from a JSON file, and writes what it
            has found, by name, beside it.
        ranks_and_name: Of a case. Those of one number of ranks share a start.
    """
    wanted = {}
    for item in request.session.items:
        if item.path == request.path and "case" in getattr(item, "fixturenames", ()):
            case = item.callspec.params["case"]
            wanted.setdefault(ranks_and_name(case)[0], []).append(case)
    results = {}
    for ranks, cases in wanted.items():
        path = tmp_path_factory.mktemp("cases") / "cases.json"
        path.write_text(json.dumps([ranks_and_name(case)[1] for case in cases]))
        job = mpi.run([str(mpi.JOBS / script), str(path)], ranks, timeout=600)
        done = path.with_suffix(".found")
        faults = json.loads(done.read_text()) if done.exists() else {}
        for case in cases:
            missing = f"did not run:\n{job.stderr[-3000:]}"
            results[case] = faults.get(ranks_and_name(case)[1], missing)
    return results
