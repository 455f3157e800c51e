"""The virtual GPU: runs PTX text on the CPU, faithful to what PTX promises and to nothing more."""

from __future__ import annotations

from warpwright.vgpu.device import Device, LaunchResult
from warpwright.vgpu.machine.events import Barrier, Event, EventLog, Observer

__all__ = ["Barrier", "Device", "Event", "EventLog", "LaunchResult", "Observer"]
