"""The benchmark of fge: ``python -m bench --help``.

How it measures, and why:

* Every contender runs in a process of its own (``worker.py``). In one process the thread pools of two
  libraries wait for one another, and the figures would be of the waiting.
* The processes take turns: in each round every contender runs a slice of each task, A B A B A B, so that a
  change of clock speed or a busy neighbour meets all of them. A process is started once and blocks while
  others run; a slice ends only when the process's own threads have gone to sleep.
* A figure is the median over rounds. A ratio is given twice: of the medians, and as the median of the ratios
  within each round.
* What the contenders compute is compared first (``agreement.py``): a faster wrong answer is not a win.
* The same inputs are used in every call, so that operands which fit a cache stay there; every call allocates
  its own outputs, for all contenders alike.
* Losses are printed like wins, and so is how busy other processes kept the machine.
"""
