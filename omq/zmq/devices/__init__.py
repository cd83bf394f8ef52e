"""Proxies that run in a thread or a process of their own."""

from __future__ import annotations

from omq.zmq.constants import DeviceType as DeviceType
from omq.zmq.devices.basedevice import Device, ProcessDevice, ThreadDevice
from omq.zmq.devices.monitoredqueue import monitored_queue
from omq.zmq.devices.monitoredqueuedevice import MonitoredQueue, ProcessMonitoredQueue, ThreadMonitoredQueue
from omq.zmq.devices.proxydevice import ProcessProxy, Proxy, ThreadProxy
from omq.zmq.devices.proxysteerabledevice import ProcessProxySteerable, ProxySteerable, ThreadProxySteerable
from omq.zmq.proxies import proxy as proxy

__all__ = [
    "Device",
    "ThreadDevice",
    "ProcessDevice",
    "Proxy",
    "ThreadProxy",
    "ProcessProxy",
    "ProxySteerable",
    "ThreadProxySteerable",
    "ProcessProxySteerable",
    "monitored_queue",
    "MonitoredQueue",
    "ThreadMonitoredQueue",
    "ProcessMonitoredQueue",
]
