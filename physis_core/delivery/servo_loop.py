"""One tick of the servo: ring in, command out, feedback back."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from physis_core.delivery.chunk import Floats
from physis_core.delivery.ring import Effect, RingControl, RingReader, ServoFeedback, ServoState
from physis_core.delivery.servo import ServoPlayer


class ServoLoop:
    """Plays from one ring; owned by the thread that ticks it.

    Only :attr:`stop_request` may be set by another thread.
    """

    def __init__(self, ring: RingReader, player: ServoPlayer, publish: Callable[[Floats], None],
                 rate_hz: float, real_time: bool) -> None:
        """Make a loop.

        Args:
            ring: to play from.
            player: makes the commands.
            publish: sends positions ``[joints]``.
            rate_hz: reported, not kept here.
            real_time: reported.
        """
        self._ring = ring
        self._player = player
        self._publish = publish
        self._rate_hz = rate_hz
        self._real_time = real_time
        self._control = RingControl()
        self._effects = 0
        self._ticks = 0
        self._unknown = np.full(len(ring.format.joints), np.nan)
        self.missed = 0
        self.stop_request = ''

    @property
    def at_rest(self) -> bool:
        """Whether the last command was not to move (or there was none)."""
        return not self._player.velocity.any()

    def tick(self, due_ns: int) -> None:
        """Command what is due at ``due_ns``."""
        self._obey(self._ring.control())
        command = self._player.step(due_ns)
        self._ticks += 1
        if command is not None:
            self._publish(command.position)
            if command.effective is not None:
                self._ring.effect(self._effects, Effect(
                    command.effective.epoch, command.effective.chunk, time.monotonic_ns()))
                self._effects += 1
        self._report(due_ns)

    def _obey(self, control: RingControl | None) -> None:
        """Do what the writer says; a record that is being written is read at the next tick."""
        player, before = self._player, self._control
        if control is not None:
            if control.epoch != player.epoch or control.active != before.active:
                player.begin_epoch(control.epoch)
            if control.stop and player.state is not ServoState.STOPPED:
                player.stop(control.stop)
            self._control = control
            for chunk, measured in self._ring.new_chunks(control.written):
                if control.active:
                    player.accept(chunk, measured)
        if self.stop_request:
            player.stop(self.stop_request)
            self.stop_request = ''

    def _report(self, due_ns: int) -> None:
        player = self._player
        self._ring.report(ServoFeedback(
            effects=self._effects, tick_ns=due_ns, state=player.state, epoch=player.epoch,
            real_time=self._real_time, ticks=self._ticks, played=player.played,
            missed=self.missed, underruns=player.underruns, limited=player.limited,
            rate_hz=self._rate_hz,
            position=self._unknown if player.position is None else player.position,
            velocity=player.velocity))
