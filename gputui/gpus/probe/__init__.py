"""The probe process, which reads NVML and /proc: it imports as little as possible."""
