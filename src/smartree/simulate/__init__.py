"""Simulated engines: policies on devices that are not at hand. numpy and scipy only."""
