//! The models of a server, from what the user chooses to engines: one that generates, with or without a scorer
//! or an embedder beside it, or one of those alone. Which paths each of them answers is left to the routes.

use std::path::Path;
use std::sync::Arc;

use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{MODEL, SCORER, SCORER_MEMORY};
use offshoot_engine::{AdapterSource, EngineHandle};
use offshoot_launch::{
    Demand, EmbedderFolder, Launched, LaunchedScorer, LaunchedSecond, ModelSource, ScorerFolder, ScorerOptions,
    SecondFolder,
};
use offshoot_model::hashes::hash_of_folder;
use offshoot_model::{Adapter, ModelConfig, ModelFolder, ModelRole};
use offshoot_openai::batch::{AnswerOrigin, name_of_model};
use offshoot_openai::protocol::{EmbedderValues, ScorerValues};
use offshoot_score::{ScorerConfig, ScorerModel, TextScorer};
use offshoot_text::Tokenizer;

use super::options::{AdapterFolder, ServeOptions};

/// Models in memory.
pub struct Models {
    /// The generator's engine, or of a server without one, the scorer's; and the same of what follows.
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub system_fingerprint: String,
    /// What requests may call that model; at least one.
    pub names: Vec<String>,
    pub generator: Option<GeneratorParts>,
    pub scorer: Option<ScorerParts>,
}

/// What is known of a generator beside its engine.
pub struct GeneratorParts {
    pub folder: ModelFolder,
    pub origin: AnswerOrigin,
    /// Adapters by their names, read and not loaded.
    pub adapters: Vec<(String, AdapterSource)>,
}

/// A model that computes values.
pub struct ScorerParts {
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub config: ModelConfig,
    pub kind: ValueKind,
    /// What requests may call it; at least one.
    pub names: Vec<String>,
}

/// What the values are.
pub enum ValueKind {
    Scorer(Arc<ScorerModel>, ScorerValues),
    Embedder(EmbedderValues),
}

impl ScorerParts {
    fn scorer(model: Arc<ScorerModel>, folder: &ScorerFolder, names: Vec<String>) -> Result<ScorerParts> {
        let engine = model.engine().clone();
        let width = engine.facts().values.ok_or_else(|| Error::Internal("a scorer without values".to_owned()))?;
        let values = ScorerValues::new(model.form(), &ScorerConfig::read(folder.path())?, width);
        let tokenizer = model.tokenizer().clone();
        let kind = ValueKind::Scorer(model, values);
        Ok(ScorerParts { engine, tokenizer, config: folder.config().clone(), kind, names })
    }

    fn embedder(engine: EngineHandle, folder: &EmbedderFolder, names: Vec<String>) -> ScorerParts {
        let kind = ValueKind::Embedder(EmbedderValues { normalises: folder.pooling().normalises });
        let (tokenizer, config) = (folder.tokenizer().clone(), folder.config().clone());
        ScorerParts { engine, tokenizer, config, kind, names }
    }

    /// The model beside a generator, if it computes values.
    fn beside(launched: &Launched, folder: &SecondFolder, names: Vec<String>) -> Result<ScorerParts> {
        match (&launched.second, folder) {
            (Some(LaunchedSecond::Scorer(model)), SecondFolder::Scorer(folder)) => {
                ScorerParts::scorer(model.clone(), folder, names)
            }
            (Some(LaunchedSecond::Embedder(engine)), SecondFolder::Embedder(folder)) => {
                Ok(ScorerParts::embedder(engine.clone(), folder, names))
            }
            _ => Err(Error::Internal("a server's second model computes no values".to_owned())),
        }
    }
}

/// The folders that are served.
enum Chosen<'a> {
    Generator(&'a Path),
    Scorer(Box<ScorerFolder>),
    Embedder(&'a Path),
}

impl Models {
    /// Loads them.
    ///
    /// # Errors
    ///
    /// A folder is no model, there is none at all, or a scorer alone is asked for what it cannot do; no device has
    /// room.
    pub fn start(options: &ServeOptions) -> Result<Models> {
        match chosen(options)? {
            Chosen::Generator(path) => Models::generator(path, options),
            Chosen::Scorer(folder) => Models::scorer(*folder, options),
            Chosen::Embedder(path) => Models::embedder(path, options),
        }
    }

    fn generator(path: &Path, options: &ServeOptions) -> Result<Models> {
        let folder = ModelFolder::open(path)?.with(options.engine.budget.weights)?;
        let scorer = options.scorer.as_ref().map(ScorerOptions::open_values).transpose()?;
        let origin = AnswerOrigin::new(&folder, &options.engine.budget, options.seed.unwrap_or(0))?;
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        let adapters = options.adapters.iter().map(|adapter| read(adapter, &folder)).collect::<Result<_>>()?;
        let names = names(&options.names, path);
        let scorer_names =
            scorer.as_ref().map_or_else(Vec::new, |scorer| self::names(&options.scorer_names, scorer.path()));
        if let Some(both) = scorer_names.iter().find(|name| names.contains(name)) {
            let expected = "a name of the scorer's own, by which requests ask for it";
            return Err(Error::value("name of the scorer", expected, format!("{both:?}, as the model is called")));
        }
        let launch = options.engine.launch(ModelSource::folder(&folder)?, Some(&tokenizer), Demand::unbounded());
        let launched = launch.beside(scorer.clone()).start()?;
        let scorer = scorer.map(|folder| ScorerParts::beside(&launched, &folder, scorer_names)).transpose()?;
        Ok(Models {
            engine: launched.engine,
            tokenizer,
            config: folder.config.clone(),
            system_fingerprint: origin.system_fingerprint.clone(),
            names,
            generator: Some(GeneratorParts { folder, origin, adapters }),
            scorer,
        })
    }

    fn scorer(folder: ScorerFolder, options: &ServeOptions) -> Result<Models> {
        let given = if options.names.is_empty() { &options.scorer_names } else { &options.names };
        let LaunchedScorer { scorer, folder, .. } = folder.start(&options.engine)?;
        let digest = scorer.identity().digest.clone();
        Ok(Models::alone(ScorerParts::scorer(scorer, &folder, names(given, folder.path()))?, digest))
    }

    fn embedder(path: &Path, options: &ServeOptions) -> Result<Models> {
        let given = if options.names.is_empty() { &options.scorer_names } else { &options.names };
        let (launched, folder) = EmbedderFolder::open(path, None)?.start(&options.engine)?;
        let parts = ScorerParts::embedder(launched.engine, &folder, names(given, path));
        Ok(Models::alone(parts, hash_of_folder(path)?))
    }

    /// Of a server without a model that generates.
    fn alone(parts: ScorerParts, system_fingerprint: String) -> Models {
        let ScorerParts { engine, tokenizer, config, names, .. } = &parts;
        Models {
            engine: engine.clone(),
            tokenizer: tokenizer.clone(),
            config: config.clone(),
            system_fingerprint,
            names: names.clone(),
            generator: None,
            scorer: Some(parts),
        }
    }
}

/// A model that is a scorer or an embedder by its folder is served as one.
fn chosen(options: &ServeOptions) -> Result<Chosen<'_>> {
    let chosen = match (&options.model, &options.scorer) {
        (Some(model), scorer) => match (ModelRole::of(model)?, scorer) {
            (ModelRole::Generator, _) => return Ok(Chosen::Generator(model)),
            (ModelRole::Embedder, None) => Chosen::Embedder(model),
            (ModelRole::Embedder, Some(scorer)) => {
                let expected = "none beside a model that makes vectors of texts";
                return Err(Error::value(SCORER, expected, scorer.path.display().to_string()));
            }
            (ModelRole::Scorer, None) => Chosen::Scorer(Box::new(ScorerFolder::open(model, None)?)),
            (ModelRole::Scorer, Some(scorer)) => {
                let expected = "none, as the model is a scorer itself; its form is chosen where it is served as the \
                                scorer, without a model";
                return Err(Error::value(SCORER, expected, scorer.path.display().to_string()));
            }
        },
        (None, Some(scorer)) => match scorer.memory {
            None if scorer.is_embedder()? => Chosen::Embedder(&scorer.path),
            None => Chosen::Scorer(Box::new(scorer.open()?)),
            Some(share) => {
                let expected = "none, as no model stands beside the scorer: it has all of the memory";
                return Err(Error::value(SCORER_MEMORY, expected, share.to_string()));
            }
        },
        (None, None) => return Err(Error::value(MODEL, "a model to serve", "none")),
    };
    let only_of_generators = [
        (options.rollout.is_some(), "trainers are to drive it"),
        (!options.adapters.is_empty(), "there are adapters"),
        (!options.prefixes.is_empty(), "there are prefixes to compute"),
        (options.data.is_some(), "there is a folder of batches"),
    ];
    match only_of_generators.into_iter().find(|(is_given, _)| *is_given) {
        None => Ok(chosen),
        Some((_, why)) => Err(Error::value(MODEL, format!("a model that generates, as {why}"), "one of values alone")),
    }
}

/// The names that are given, or else the folder's.
fn names(given: &[String], folder: &Path) -> Vec<String> {
    if given.is_empty() { vec![name_of_model(folder)] } else { given.to_vec() }
}

/// Reads an adapter and compares it with the model, before the model's weights are read.
fn read(adapter: &AdapterFolder, folder: &ModelFolder) -> Result<(String, AdapterSource)> {
    let read = Adapter::open(&adapter.folder)?;
    read.check(&folder.config)?;
    Ok((adapter.name.clone(), AdapterSource::Read(Arc::new(read))))
}
