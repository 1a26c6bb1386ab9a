"""Tool hosts, which call tools: functions of this process, and tools of workers."""
