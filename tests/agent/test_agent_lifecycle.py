"""How pods live and end: jobs, restarts, probes, order of containers, deletion."""

import time
from pathlib import Path

from agent_pods import Object, Pods, container, ready, state

from tests.support.waiting import wait_until


def job(pods: Pods, name: str, spec: Object) -> str:
    path = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs"
    pods.client.post(path, {"metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def patch(pods: Pods, kind: str, name: str, body: str) -> None:
    pods.plane.kubectl("patch", "-n", pods.namespace, kind, name, "--type=merge", "-p", body)


def wait_job(pods: Pods, path: str, wanted: str, seconds: float = 60) -> Object:
    deadline = time.monotonic() + seconds
    while True:
        found: Object = pods.client.get(path)
        if any(
            c["type"] == wanted and c["status"] == "True" for c in found["status"].get("conditions") or []
        ):
            return found
        assert time.monotonic() < deadline, found["status"]
        time.sleep(0.1)


def of_job(pods: Pods, name: str) -> list[Object]:
    items: list[Object] = pods.client.get(f"{pods.root}/pods?labelSelector=job-name={name}")["items"]
    return items


def test_an_indexed_job_is_suspended_and_resumed(pods: Pods) -> None:
    script = """
        trap 'echo left; exit 143' TERM
        touch /shared/up-$JOB_COMPLETION_INDEX
        [ -e /shared/go ] && { echo index $JOB_COMPLETION_INDEX; exit 0; }
        while true; do sleep 0.1; done"""
    pods.make(
        "persistentvolumeclaims",
        "shared",
        {"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}},
    )
    main = container(script, volumeMounts=[{"name": "shared", "mountPath": "/shared"}])
    main["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    up = {"command": ["sh", "-c", "test -e /shared/up-$JOB_COMPLETION_INDEX"]}
    # Ready: it has its trap.
    main["readinessProbe"] = {"exec": up, "periodSeconds": 1, "timeoutSeconds": 10}
    template = {
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 60,
            "containers": [main],
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
        }
    }
    spec = {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "suspend": True,
        "template": template,
    }
    path = job(pods, "train", spec)
    time.sleep(0.3)
    assert of_job(pods, "train") == []
    patch(pods, "job", "train", '{"spec":{"suspend":false}}')
    deadline = time.monotonic() + 45
    while [ready(pod) for pod in of_job(pods, "train")] != [True, True]:
        assert time.monotonic() < deadline, of_job(pods, "train")
        time.sleep(0.1)
    assert {pod["spec"]["nodeName"] for pod in of_job(pods, "train")} == {"node-1", "node-2"}
    patch(pods, "job", "train", '{"spec":{"suspend":true}}')
    began = time.monotonic()
    while of_job(pods, "train"):
        assert time.monotonic() - began < 30, "a trainer that leaves on SIGTERM must not wait for its grace"
        time.sleep(0.05)
    status = pods.client.get(path)["status"]
    assert not status.get("succeeded")
    assert not status.get("failed"), "a suspended job's pods are not failures"
    pods.create(
        "go",
        container("touch /shared/go", volumeMounts=main["volumeMounts"]),
        volumes=template["spec"]["volumes"],
    )
    pods.wait_phase("go", "Succeeded")
    patch(pods, "job", "train", '{"spec":{"suspend":false}}')
    done = wait_job(pods, path, "Complete")
    assert done["status"]["completedIndexes"] == "0,1"


def test_exit_codes_and_restart_policies(pods: Pods) -> None:
    pods.create("never", container("exit 3"))
    pods.create("signalled", container("kill -9 $$$$"))
    pods.create("missing", container(name="main", command=["/no/such/program"]))
    retry = container('n=$(cat /x/n 2>/dev/null || echo 0); echo $((n+1)) > /x/n; echo run $n; [ "$n" = 2 ]')
    retry["volumeMounts"] = [{"name": "x", "mountPath": "/x"}]
    pods.create("onfailure", retry, restart="OnFailure", volumes=[{"name": "x", "emptyDir": {}}])
    ended = state(pods.wait_phase("never", "Failed"))["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    ended = state(pods.wait_phase("signalled", "Failed"))["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)
    ended = state(pods.wait_phase("missing", "Failed"))["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "/no/such/program" in ended["message"]
    pod = pods.wait_phase("onfailure", "Succeeded")
    assert state(pod)["restartCount"] == 2
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 1
    assert pods.logs("onfailure") == "run 2\n"
    assert pods.logs("onfailure", "--previous") == "run 1\n"


def test_a_crash_loop_backs_off_and_says_so(pods: Pods) -> None:
    pods.create("p", container("exit 1"), restart="Always")
    pod = pods.wait(
        "p",
        lambda pod: (state(pod).get("state") or {}).get("waiting", {}).get("reason") == "CrashLoopBackOff",
    )
    assert pod["status"]["phase"] == "Running"
    assert "back-off" in state(pod)["state"]["waiting"]["message"]
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 1
    pods.wait("p", lambda pod: state(pod)["restartCount"] >= 2)
    pods.wait_event("p", "BackOff")


def test_termination_messages(pods: Pods) -> None:
    pods.create("default", container("printf '{\"ok\": true}' > /dev/termination-log"))
    pods.create(
        "own",
        container("printf mine > /run/test-out/message", terminationMessagePath="/run/test-out/message"),
    )
    pods.create("logs", container("echo broken; exit 1", terminationMessagePolicy="FallbackToLogsOnError"))
    pods.create("long", container("head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log"))
    for name, message in (
        ("default", '{"ok": true}'),
        ("own", "mine"),
        ("logs", "broken\n"),
        ("long", "x" * 4096),
    ):
        pod = pods.wait_phase(name, "Succeeded", "Failed")
        assert state(pod)["state"]["terminated"]["message"] == message


def test_init_containers_and_sidecars_keep_their_order(pods: Pods) -> None:
    stamp = [{"name": "log", "mountPath": "/log"}]
    serve = "echo sidecar >> /log/order; trap 'echo sidecar-end >> /log/order; exit 0' TERM; "
    serve += "while :; do sleep 0.05; done"
    startup = {
        "exec": {"command": ["grep", "sidecar", "/log/order"]},
        "periodSeconds": 1,
        "failureThreshold": 60,
    }
    inits = [
        container("sleep 0.3; echo first >> /log/order", "first", volumeMounts=stamp),
        container(serve, "sidecar", restartPolicy="Always", startupProbe=startup, volumeMounts=stamp),
        container("echo second >> /log/order", "second", volumeMounts=stamp),
    ]
    main = container("echo main >> /log/order; sleep 0.3; echo main-end >> /log/order", volumeMounts=stamp)
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    pods.make("persistentvolumeclaims", "log", claim)
    volumes = [{"name": "log", "persistentVolumeClaim": {"claimName": "log"}}]
    pods.create("p", main, initContainers=inits, volumes=volumes)
    pod = pods.wait_phase("p", "Succeeded")
    assert state(pod, "sidecar")["state"]["terminated"]["exitCode"] == 0
    pods.create("read", container("cat /log/order", volumeMounts=stamp), volumes=volumes)
    assert pods.output("read").split() == ["first", "sidecar", "second", "main", "main-end", "sidecar-end"]


def test_a_failed_init_container_fails_the_pod(pods: Pods) -> None:
    pods.create("p", container("echo never"), initContainers=[container("exit 4", "init")])
    pod = pods.wait_phase("p", "Failed")
    assert state(pod, "init")["state"]["terminated"]["exitCode"] == 4
    assert "waiting" in state(pod)["state"]


def test_readiness_follows_its_probe(pods: Pods, tmp_path: Path) -> None:
    probe = {"exec": {"command": ["test", "-e", "/x/ok"]}, "periodSeconds": 1, "failureThreshold": 1}
    main = container("sleep 600", readinessProbe=probe)
    main["volumeMounts"] = [{"name": "x", "mountPath": "/x"}]
    pods.create("p", main, volumes=[{"name": "x", "hostPath": {"path": str(tmp_path)}}])
    pod = pods.wait_phase("p", "Running")
    assert not ready(pod)
    (tmp_path / "ok").touch()
    pods.wait("p", ready)
    (tmp_path / "ok").unlink()
    pod = pods.wait("p", lambda pod: not ready(pod))
    assert state(pod)["restartCount"] == 0
    assert "Readiness probe failed" in pods.wait_event("p", "Unhealthy")


def test_liveness_restarts_and_startup_protects(pods: Pods) -> None:
    liveness = {
        "tcpSocket": {"port": 9},
        "periodSeconds": 1,
        "failureThreshold": 1,
        "terminationGracePeriodSeconds": 20,
    }
    pods.create("dies", container("sleep 60", livenessProbe=liveness), restart="Always")
    startup = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 60}
    pods.create(
        "waits", container("sleep 60", livenessProbe=liveness, startupProbe=startup), restart="Always"
    )
    pod = pods.wait("dies", lambda pod: state(pod).get("restartCount", 0) >= 1)
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 143
    assert "Liveness probe failed" in pods.wait_event("dies", "Unhealthy")
    pod = pods.wait_phase("waits", "Running")
    assert state(pod)["restartCount"] == 0
    assert state(pod)["started"] is False


def test_deletion_gives_the_grace_and_no_more(pods: Pods) -> None:
    wait = "touch /x/$HOSTNAME; while :; do sleep 0.05; done"
    polite = f"trap 'sleep 0.5; echo bye > /x/bye; exit 0' TERM; {wait}"
    stubborn = f"trap '' TERM; (setsid sleep 4242 &) ; {wait}"
    x = {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /x/hook"]}}}
    folder = pods.plane.work / "hooks"
    volumes = [{"name": "x", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}]
    pods.create(
        "polite", container(polite, lifecycle=hook, **x), volumes=volumes, terminationGracePeriodSeconds=20
    )
    pods.create("stubborn", container(stubborn, **x), volumes=volumes, terminationGracePeriodSeconds=1)
    pods.create("forced", container(stubborn, **x), volumes=volumes, terminationGracePeriodSeconds=60)
    for name in ("polite", "stubborn", "forced"):
        pods.wait_phase(name, "Running")
    for name in ("polite", "stubborn", "forced"):
        wait_until((folder / name).exists, f"{name} to have its trap")
    began = time.monotonic()
    for name, grace in (("polite", None), ("stubborn", None), ("forced", 0)):
        pods.delete(name, grace)
    pods.wait_gone("forced")
    pods.wait_gone("polite")
    assert time.monotonic() - began < 18, "less than the polite one's grace"
    assert (folder / "bye").read_text() == "bye\n"
    assert (folder / "hook").read_text() == "hook\n"
    pods.wait_gone("stubborn")
    assert 0.9 < time.monotonic() - began < 18
    deadline = time.monotonic() + 5
    while any_process("sleep\0004242"):
        assert time.monotonic() < deadline, "a process that left its group outlived its container"
        time.sleep(0.05)


def any_process(command_line: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if command_line in (entry / "cmdline").read_text():
                    return True
            except OSError:
                continue
    return False


def test_active_deadline(pods: Pods) -> None:
    pods.create("p", container("sleep 60"), activeDeadlineSeconds=1)
    pod = pods.wait_phase("p", "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
