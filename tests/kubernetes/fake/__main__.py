"""`python -m tests.kubernetes.fake DIR`: starts a fake cluster to try things out on, until it is interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

from tests.kubernetes.fake.server import FakeKubernetes, kubeconfig

if __name__ == "__main__":
    file = Path(sys.argv[1]) / "kubeconfig"
    fake = FakeKubernetes(kueue=4)
    file.write_text(kubeconfig(fake.address))
    print(f"export KUBECONFIG={file} GPUTUI_CLUSTER=kubernetes", flush=True)
    try:
        Event().wait()
    except KeyboardInterrupt:
        fake.close()
