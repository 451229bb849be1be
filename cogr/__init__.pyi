from trainers.project import Project as Project

__version__: str
