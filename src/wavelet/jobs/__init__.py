"""What to train: jobs that come with Wavelet, and jobs from the user's own files."""

from wavelet.jobs.catalogue import describe, names
from wavelet.jobs.evaluation import Evaluation
from wavelet.jobs.job import Job
from wavelet.jobs.loading import JobFileError, load
from wavelet.jobs.seeds import kept_random_state, set_seeds

__all__ = ["Evaluation", "Job", "JobFileError", "describe", "kept_random_state", "load", "names", "set_seeds"]
