"""The virtual GPU: runs PTX text on the CPU, faithful to what PTX promises and to nothing more."""

from __future__ import annotations

from warpwright.vgpu.events import Barrier, Event, Observer, Recorder
from warpwright.vgpu.launch import Device, LaunchResult

__all__ = ["Barrier", "Device", "Event", "LaunchResult", "Observer", "Recorder"]
