"""Services of engines: the commands and the settings file that fit an address."""

from __future__ import annotations

from gputui.domain.container import service_at
from tests.cases import cases

OWN = 1000


def test_an_engine_of_another_machine_is_that_machines_service() -> None:
    for address in ("tcp://10.0.0.2:2376", "unix:///run/forwarded.sock", "ssh://lab"):
        found = service_at(address, OWN, "gpu1")
        assert (found.reload, found.place) == (
            "on gpu1: sudo systemctl reload docker",
            "/etc/docker/daemon.json on gpu1",
        )


@cases(
    ("address", "start", "reload", "place"),
    [
        (
            "unix:///var/run/docker.sock",
            "sudo systemctl enable --now docker",
            "sudo systemctl reload docker",
            "/etc/docker/daemon.json",
        ),
        (
            "http+unix:///run/docker.sock",
            "sudo systemctl enable --now docker",
            "sudo systemctl reload docker",
            "/etc/docker/daemon.json",
        ),
        (
            "unix:///run/user/1000/docker.sock",
            "systemctl --user enable --now docker",
            "systemctl --user reload docker",
            "~/.config/docker/daemon.json",
        ),
        (
            "unix:///run/user/1001/docker.sock",
            "sudo -u '#1001' XDG_RUNTIME_DIR=/run/user/1001 systemctl --user enable --now docker",
            "sudo -u '#1001' XDG_RUNTIME_DIR=/run/user/1001 systemctl --user reload docker",
            "~/.config/docker/daemon.json",
        ),
        (
            "unix:///run/user/1000/podman/podman.sock",
            "systemctl --user enable --now podman.socket",
            "systemctl --user reload podman.socket",
            "the engine's daemon.json",
        ),
        (
            "unix:///run/podman/podman.sock",
            "sudo systemctl enable --now podman.socket",
            "sudo systemctl reload podman.socket",
            "the engine's daemon.json",
        ),
        (
            "ssh://alice@gpu1:22",
            "on gpu1:22: sudo systemctl enable --now docker",
            "on gpu1:22: sudo systemctl reload docker",
            "/etc/docker/daemon.json on gpu1:22",
        ),
        (
            "ssh://gpu1/run/user/1001/docker.sock",
            "on gpu1: systemctl --user enable --now docker",
            "on gpu1: systemctl --user reload docker",
            "~/.config/docker/daemon.json on gpu1",
        ),
        (
            "tcp://gpu1:2376",
            "start the engine at tcp://gpu1:2376, or correct the address: DOCKER_HOST, `docker context ls`",
            "send dockerd the signal HUP: the engine at tcp://gpu1:2376",
            "the engine's daemon.json",
        ),
        (
            "unix:///srv/x.sock",
            "start the engine at unix:///srv/x.sock, or correct the address: DOCKER_HOST, `docker context ls`",
            "send dockerd the signal HUP: the engine at unix:///srv/x.sock",
            "the engine's daemon.json",
        ),
    ],
)
def test_an_address_tells_the_service(address: str, start: str, reload: str, place: str) -> None:
    found = service_at(address, OWN)
    assert (found.start, found.reload, found.place) == (start, reload, place)
